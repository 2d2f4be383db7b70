"""The help of every command as golden files; ``python -m tests.cli.golden.make`` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import typer

from fedsynth.cli.app import app

FOLDER = Path(__file__).parent / "help"
WIDTH = 100


def helps() -> dict[str, str]:
    """Return each command's help text by the name of its golden file."""
    return dict(_helps(typer.main.get_command(app), "fedsynth", None))


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, name, terminal_width=WIDTH, max_content_width=WIDTH)
    yield f"{context.command_path.replace(' ', '-')}.txt", context.get_help() + "\n"
    if isinstance(command, click.Group):
        for one, inner in command.commands.items():
            yield from _helps(inner, one, context)


if __name__ == "__main__":
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for file, text in helps().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
