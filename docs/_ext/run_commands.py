"""The directive ``run``: commands of a page, run as they stand when the page is built, and shown with what they print.

The commands of one page share a folder that is empty at first; ``$EXAMPLES`` is that of the examples. A command that
ends with another code than ``:exit:`` (0) fails the build. ``:lines:`` shows so many lines of the output at most,
``:quiet:`` none; ``:hidden:`` shows nothing at all.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]


class Run(SphinxDirective):
    """Run shell commands in the page's folder; a loop is one line, or hidden."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "exit": directives.nonnegative_int,
        "lines": directives.positive_int,
        "quiet": directives.flag,
        "hidden": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Return the commands and their output as one console block."""
        if "folder of run" not in self.env.temp_data:  # which Sphinx empties with each page
            self.env.temp_data["folder of run"] = tempfile.TemporaryDirectory()
        folder = Path(self.env.temp_data["folder of run"].name)
        commands = [list(self.content)] if "hidden" in self.options else self._commands()
        script = "\nprintf '\\0'\n".join(["\n".join(lines) for lines in commands])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env={**os.environ, "EXAMPLES": str(ROOT / "examples")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != self.options.get("exit", 0):
            where = f"{self.env.docname}:{self.lineno}"
            raise ExtensionError(f"{where}: a command of the page ended with {done.returncode}:\n{done.stdout}")
        if "hidden" in self.options:
            return []
        shown: list[str] = []
        for (first, *others), printed in zip(commands, done.stdout.split("\0"), strict=True):
            lines = printed.replace(str(folder), "/home/you").rstrip().splitlines()
            most = 0 if "quiet" in self.options else self.options.get("lines", len(lines))
            shown += [f"$ {first}", *others, *lines[:most]]
            if 0 < most < len(lines):
                shown.append("...")
        block = nodes.literal_block("\n".join(shown), "\n".join(shown), language="console")
        self.set_source_info(block)
        return [block]

    def _commands(self) -> list[list[str]]:
        """Return the lines of each command; one goes on where its last line ends with a backslash."""
        found: list[list[str]] = []
        goes_on = False
        for line in self.content:
            if goes_on:
                found[-1].append(line)
            else:
                found.append([line])
            goes_on = line.endswith("\\")
        return found


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive; pages share no folder, so that they may be read side by side."""
    app.add_directive("run", Run)
    return {"parallel_read_safe": True}
