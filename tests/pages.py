"""The examples on pages of the documentation, in the order in which a reader comes to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Block(NamedTuple):
    """A fenced block: its language or directive, its options by name, and its lines."""

    kind: str
    options: dict[str, str]
    text: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, named by its path from the top of the repository."""
    found = []
    for kind, body in re.findall(r"^```(\S+).*?\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
        options = dict(re.findall(r"^:([\w-]+): *(.*)\n", body, re.MULTILINE)) if kind.startswith("{") else {}
        text = re.sub(r"^:[\w-]+:.*\n", "", body, flags=re.MULTILINE) if options else body
        found.append(Block(kind, options, text))
    return found


def pages_that_run() -> list[str]:
    """Return the pages whose commands or cells the documentation's build runs."""
    names = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))
    return [name for name in names if any(block.kind in ("{run}", "{code-cell}") for block in blocks(name))]


def readme_commands() -> list[str]:
    """Return the commands by which the README makes a table, without the one that installs the package."""
    (text,) = (block.text for block in blocks("README.md") if block.kind == "sh" and "fedsynth" in block.text)
    first, *commands = [line.partition(" #")[0].strip() for line in text.splitlines()]
    assert first.startswith("pip install")
    return commands
