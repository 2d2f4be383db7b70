"""Layout of help texts: commands under headings in a chosen order, examples that can be copied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click
import typer.core

_INDENTED = re.compile(r"(?<=\n\n)(?=  )")  # before an indented paragraph


class CommandGroup(typer.core.TyperGroup):
    """A group of commands whose ``--help`` lists the commands under headings, ahead of the options.

    Subclasses set ``panels``, the names of the commands by heading. Indented paragraphs of a help text are examples and
    keep their line breaks, so that a long command can be copied with its continuation lines.
    """

    panels: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The names of the commands under each heading; commands that are not named come last."""

    def __init__(self, **attributes: Any) -> None:
        """Take typer's arguments; raises ``LookupError`` if a heading names a command that does not exist."""
        super().__init__(**attributes)
        order = [name for names in self.panels.values() for name in names]
        if unknown := set(order) - set(self.commands):
            raise LookupError(f"help panels name commands that do not exist: {sorted(unknown)}")
        self.commands = {name: self.commands[name] for name in dict.fromkeys([*order, *self.commands])}
        for command in (self, *self.commands.values()):
            command.help = _INDENTED.sub("\b\n", command.help or "")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the group is for, then its commands, to ``formatter``; called by click for ``--help``."""
        super().format_help_text(ctx, formatter)
        width = max(len(name) for name in self.commands)
        limit = formatter.width - 6 - width
        placed = {name for names in self.panels.values() for name in names}
        others = [name for name in self.commands if name not in placed]
        for heading, names in [*self.panels.items(), ("Other commands", others)]:
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: click calls this after the options, and the commands are written before them."""
