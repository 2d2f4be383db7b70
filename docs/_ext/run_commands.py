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
    """Run shell commands in the page's folder."""

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
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(self.content)],
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
        shown = [("$ " if new else "") + line for new, line in self._commands()]
        printed = done.stdout.replace(str(folder), "/home/you").rstrip().splitlines()
        if "quiet" not in self.options:
            most = self.options.get("lines", len(printed))
            shown += printed[:most] + (["..."] if len(printed) > most else [])
        block = nodes.literal_block("\n".join(shown), "\n".join(shown), language="console")
        self.set_source_info(block)
        return [block]

    def _commands(self) -> list[tuple[bool, str]]:
        """Return the lines of the commands, each with whether a command begins there."""
        begins = [True, *(not line.endswith("\\") for line in self.content)]
        return list(zip(begins, self.content, strict=False))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive; pages share no folder, so that they may be read side by side."""
    app.add_directive("run", Run)
    return {"parallel_read_safe": True}
