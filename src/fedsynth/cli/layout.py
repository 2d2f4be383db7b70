"""The commands' base class: help texts under headings, examples that can be copied, options that are given once."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import click
import typer.core

_INDENTED = re.compile(r"(?<=\n\n)(?=  )")  # before an indented paragraph


_INSTEAD = {
    "--data": "one table is split over the simulated sites. Join the files into one, or, if each site has its own "
    "table, pass them to federate({...}) in Python or run a real federation (fedsynth deploy)",
}
"""What to do in place of giving an option twice."""


class CommandGroup(typer.core.TyperGroup):
    """A group of commands whose ``--help`` lists the commands under headings, ahead of the options.

    An option that takes one value is refused if it is given twice, to the group or to one of its commands: click would
    use the last value and drop the others.

    Subclasses set ``panels``, the names of the commands by heading. Indented paragraphs of a help text are examples and
    keep their line breaks, so that a long command can be copied with its continuation lines.
    """

    panels: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The names of the commands under each heading; commands that are not named come last."""
    absent: ClassVar[Collection[str]] = ()
    """Names in ``panels`` whose feature is not installed."""

    def __init__(self, **attributes: Any) -> None:
        """Take typer's arguments; raises ``LookupError`` if a heading names a command that does not exist."""
        super().__init__(**attributes)
        order = [name for names in self.panels.values() for name in names if name not in self.absent]
        if unknown := set(order) - set(self.commands):
            raise LookupError(f"help panels name commands that do not exist: {sorted(unknown)}")
        self.commands = {name: self.commands[name] for name in dict.fromkeys([*order, *self.commands])}
        for command in (self, *self.commands.values()):
            command.help = _INDENTED.sub("\b\n", command.help or "")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own arguments; raises ``click.UsageError`` for an option that is given twice."""
        _refuse_repeated(ctx, args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name of a command, the command and its arguments.

        Raises ``click.UsageError`` for an unknown command, and for an option of the command that is given twice.
        """
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            _refuse_repeated(click.Context(command, ctx, name), rest)
        return name, command, rest

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the group is for, then its commands, to ``formatter``; called by click for ``--help``."""
        super().format_help_text(ctx, formatter)
        width = max(len(name) for name in self.commands)
        limit = formatter.width - 6 - width
        placed = {name for names in self.panels.values() for name in names}
        others = [name for name in self.commands if name not in placed]
        for heading, every in [*self.panels.items(), ("Other commands", others)]:
            names = [name for name in every if name not in self.absent]
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: click calls this after the options, and the commands are written before them."""


def _refuse_repeated(ctx: click.Context, args: Sequence[str]) -> None:
    """Raise ``click.UsageError`` if an option that takes one value is given twice among a command's arguments."""
    given: Sequence[click.Parameter] = ()
    with contextlib.suppress(click.UsageError):  # click raises it again
        given = ctx.command.make_parser(ctx).parse_args(list(args))[2]
    if any(one.is_eager for one in given):  # such as --help
        return
    for option, times in Counter(given).items():
        if times > 1 and isinstance(option, click.Option) and not (option.multiple or option.count or option.is_flag):
            name = max(option.opts, key=len)
            instead = _INSTEAD.get(name, "leave the others out")
            raise click.UsageError(f"{name} is given {times} times and takes one value: {instead}.", ctx)
