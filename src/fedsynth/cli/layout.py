"""Commands for cyclopts: functions that are imported when needed; their help and errors; and text for the terminal."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from cyclopts import App
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnusedCliTokensError,
)

from fedsynth.cli.output import text_width
from fedsynth.errors import nearest

if TYPE_CHECKING:
    from fedsynth.cli.adapter import Option

_INSTEAD = {
    "--data": "one table is split over the simulated sites. Join the files into one, or, if each site has its own "
    "table, pass them to federate({...}) in Python or run a real federation (fedsynth deploy)",
}
"""What to do in place of giving an option twice."""
_OPTIONS = [
    (
        "--log-file PATH",
        "File to which the log, and the traceback of a bug, is appended; give it before the name of the command. Only "
        "its owner can read it, since messages may quote values of rows. Warnings go to the terminal in any case, and "
        "without this option so does the traceback of a bug.",
    ),
    ("--version", "Print the version of fedsynth and stop."),
    ("--install-completion", "Teach your shell to complete commands and options, and stop."),
    ("--help", "Show this text, or after the name of a command that command's, and stop."),
]


class Command:
    """A command for cyclopts: a function, which is imported when needed."""

    def __init__(self, place: str) -> None:
        """Take the function's place, written as ``package.module:name``."""
        self.__name__, self.__annotations__ = place, {}

    @cached_property
    def function(self) -> Callable[..., int | None]:
        """The function, which returns an exit code, or nothing."""
        from fedsynth.plugins import named

        found: Callable[..., int | None] = named(self.__name__)
        return found

    @cached_property
    def options(self) -> list[Option]:
        """The options and arguments, in the order of the function's parameters."""
        from fedsynth.cli.adapter import options_of

        return list(options_of(self.function))

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature([one.parameter for one in self.options])

    def __call__(self, *values: Any, **given: Any) -> int | None:
        """Run the function with the options that were given."""
        from fedsynth.cli.adapter import run

        return run(self.function, values, given)


class Commands(App):
    """A command or group of commands, whose help texts are laid out by :func:`help_text`."""

    everything = False
    """Whether a help text has rare options too."""

    def help_print(self, tokens: Any = None, *, console: Any = None) -> None:
        """Print the help of the command that ``tokens`` name; called by cyclopts for ``--help``."""
        names, apps, _ = self.parse_commands(tokens)
        print(help_text(" ".join([self.name[0], *names]), apps[-1], self.everything))


def help_text(path: str, app: App, everything: bool = True) -> str:
    """Return the help of a command or group; without ``everything``, rare options are only counted."""
    width = min(text_width(), 100) - 2
    sections: dict[str, list[tuple[str, str]]] = {}
    more = ""
    if isinstance(app.default_command, Command):
        from fedsynth.cli.adapter import help_of

        options = app.default_command.options
        usage = [one.usage for one in options if one.positional]
        text = help_of(app.default_command.function)
        for one in options:
            if everything or not one.rare:
                named = one.spelled if one.positional else one.usage
                sections.setdefault("Arguments" if one.positional else "Options", []).append((named, one.described))
        if hidden := 0 if everything else sum(one.rare for one in options):
            more = f"{hidden} more options: {path} --help-all"
    else:
        usage, text = ["COMMAND"], inspect.cleandoc(app.help)
        for name in app:
            if not name.startswith("-"):
                summary = app[name].help.partition("\n")[0]
                heading, *_ = cast("tuple[str, ...]", app[name].group)
                sections.setdefault(heading, []).append((name, summary))
        if " " not in path:
            sections["Options"] = _OPTIONS
    lines = [" ".join(["Usage:", path, *usage, "[OPTIONS]"]), ""]
    for paragraph in text.split("\n\n"):
        lines += [paragraph if paragraph.startswith("  ") else "\n".join(_wrap(paragraph, width)), ""]
    for heading, rows in sections.items():
        lines += [f"{heading}:", *_columns(rows, width), ""]
    return "\n".join([*lines, more]).rstrip()


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _columns(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield rows of two columns; a long name in the first one stands on a line of its own."""
    first = min(max(len(name) for name, _ in rows), 22) + 4
    for name, text in rows:
        wrapped = _wrap(text, width - first) or [""]
        yield f"  {name}" if len(name) + 4 > first else f"  {name:{first - 2}}{wrapped.pop(0)}"
        yield from (" " * first + line for line in wrapped)


def complaint(error: CycloptsError) -> str:
    """Return what is wrong with the words of a command as a sentence."""
    name = error.argument.name if error.argument else ""
    if isinstance(error, RepeatArgumentError):
        name = error.token.keyword or name
        return f"{name} is given more than once and takes one value: {_INSTEAD.get(name, 'leave the others out')}"
    if isinstance(error, MissingArgumentError):
        if error.keyword or (error.argument and error.argument.tokens):
            return f"{error.keyword or name} needs a value"
        options = error.target.options if isinstance(error.target, Command) else []
        missing = next((one for one in options if name in (one.spelled, one.name, one.spelled.upper())), None)
        return f"{missing.spelled} is required: {missing.text}" if missing else f"{name} is required"
    if isinstance(error, CoercionError) and error.token and error.target_type in (int, float):
        wanted = "a whole number" if error.target_type is int else "a number"
        return f"{error.token.keyword or name}: expected {wanted}, not {error.token.value!r}"
    if isinstance(error, CoercionError) and error.token and get_origin(error.target_type) is Literal:
        known = nearest(error.token.value, get_args(error.target_type))
        return f"{error.token.keyword or name}: {error.token.value!r} is unknown; {known}"
    if isinstance(error, UnusedCliTokensError):
        return f"the command takes no further argument, but there is {' '.join(error.unused_tokens or ())!r}"
    error.verbose = False
    return f"{str(error)[:1].lower()}{str(error)[1:]}"
