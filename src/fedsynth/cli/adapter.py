"""Options of commands from functions: their parameters, and the fields of structs among these.

A parameter before ``/`` is an argument of the command, any other an option; a ``tuple`` is an option that may be
repeated, a ``Sequence`` one of names separated by commas. A parameter ``partial[S]``, where ``S`` is a struct of
settings (:mod:`fedsynth.settings`), stands for an option for each of the fields that :class:`Fields` names: the
function is handed a call that makes the struct, with the options that were given as its ``keywords``. The text of an
option is that of the parameter in the section ``Parameters`` of the function's docstring, or that below the field of
this name in the struct, in :class:`~fedsynth.cli.options.Shared` or in :class:`~fedsynth.runs.job.Job`.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from fedsynth.cli.options import Shared
from fedsynth.runs.job import ASKED, Job, parse_option
from fedsynth.settings import bounds_of, members, read_settings, texts

REQUIRED = inspect.Parameter.empty
_PARAMETERS = "\n\nParameters\n----------\n"
_VALUES = {int: "NUMBER", float: "NUMBER", Path: "PATH", str: "TEXT", Sequence: "TEXT"}


class Fields:
    """Which fields of a struct are options of a command, and how."""

    def __init__(self, *names: str, optional: bool = False, rare: Sequence[str] = (), **defaults: Any) -> None:
        """Name the fields (none: all) and the ``defaults`` that differ from the struct's.

        With ``optional``, none of them is required. ``rare`` are the command's options that only ``--help-all`` shows.
        """
        self.names, self.optional, self.rare, self.defaults = names, optional, rare, defaults


@dataclass(frozen=True)
class Option:
    """An option or argument of a command.

    ``spelled`` is what users write. ``default`` is :data:`REQUIRED` if it is required. ``owner`` is the parameter whose
    struct has the field; empty for a parameter of the function. A ``rare`` one is shown by ``--help-all`` alone.
    """

    name: str
    spelled: str
    kind: Any
    default: Any
    text: str
    owner: str = ""
    rare: bool = False

    @property
    def positional(self) -> bool:
        """Whether it is an argument, given by its place."""
        return not self.spelled.startswith("-")

    @property
    def base(self) -> Any:
        """The type without bounds, and without the ``None`` of an option that may be left out."""
        kind = members(self.kind)[0]
        return {abc.Mapping: Mapping, abc.Sequence: Sequence}.get(typing.get_origin(kind), kind)

    @property
    def several(self) -> Any:
        """The type of one of its values, if it may be repeated; an entry of a mapping is given as NAME=VALUE."""
        origin = typing.get_origin(self.base)
        return str if self.base is Mapping else typing.get_args(self.base)[0] if origin is tuple else None

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter of the function that cyclopts parses."""
        kind = list[self.several] if self.several else str if self.base is Sequence else self.base  # type: ignore[name-defined]
        place = inspect.Parameter.POSITIONAL_ONLY if self.positional else inspect.Parameter.KEYWORD_ONLY
        told = Parameter(
            None if self.positional else self.spelled, negative=(), allow_repeating=True if kind is bool else None
        )
        if self.default is REQUIRED:
            return inspect.Parameter(self.name, place, annotation=Annotated[kind, told])
        if kind is bool:
            return inspect.Parameter(self.name, place, default=False, annotation=Annotated[kind, told])
        return inspect.Parameter(self.name, place, default=None, annotation=Annotated[kind | None, told])

    @property
    def usage(self) -> str:
        """The option with a placeholder of its value, or the argument as in a line of usage."""
        if self.positional:
            word = self.spelled + "..." * bool(self.several)
            return word if self.default is REQUIRED else f"[{word}]"
        if typing.get_origin(self.base) is Literal:
            return f"{self.spelled} {'|'.join(typing.get_args(self.base))}"
        value = "NAME=VALUE" if self.base is Mapping else _VALUES.get(self.several or self.base, "")
        return f"{self.spelled} {value}".rstrip()

    @property
    def described(self) -> str:
        """The text with default and bounds, as in a help text."""
        shown = self.default not in (REQUIRED, None, "", False, ()) and self.default != {}
        required = "required" if self.default is REQUIRED and not self.positional else ""
        notes = "; ".join(filter(None, [f"default: {self.default}" if shown else "", bounds_of(self.kind), required]))
        return f"{self.text}  [{notes}]" if notes else self.text

    def read(self, value: Any) -> Any:
        """Return the value from what cyclopts made of the words; raises ``InvalidParameter`` if it is out of bounds."""
        if self.base is Mapping:
            return dict(map(parse_option, value))
        if self.base is Sequence:
            return [name.strip() for name in value.split(",") if name.strip()]
        if not self.owner and bounds_of(self.kind):  # those of a struct's fields are checked when it is made
            _made(msgspec.defstruct("Bounded", [(self.name, self.kind)]), {}, **{self.name: value})
        return tuple(value) if self.several else value


def spelled(name: str) -> str:
    """Return how a field of a struct or a parameter is written as an option, such as ``--rows-per-person``."""
    return {"options": "--set", "trust_options": "--trust-set"}.get(name, f"--{name.replace('_', '-')}")


def help_of(function: Callable[..., Any]) -> str:
    """Return the help text of a command: its function's docstring without the parameters."""
    return inspect.cleandoc(function.__doc__ or "").partition(_PARAMETERS)[0]


def options_of(function: Callable[..., Any]) -> Iterator[Option]:
    """Yield the options and arguments of a command, in the order of its function's parameters."""
    listed = inspect.cleandoc(function.__doc__ or "").partition(_PARAMETERS)[2]
    own = {name: " ".join(said.split()) for name, said in re.findall(r"^(\w+)\n((?:    .+\n?|\n)+)", listed, re.M)}
    rare: Sequence[str] = ()
    for name, (kind, struct, wanted) in _parameters(function).items():
        parameter, plain = inspect.signature(function).parameters[name], name.rstrip("_")
        if wanted is None:
            shown = plain.upper() if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else spelled(plain)
            text = own.get(name) or {**texts(Job), **texts(Shared)}[plain]
            yield Option(name, shown, kind, parameter.default, text, rare=name in rare)
            continue
        rare = wanted.rare
        for one in msgspec.structs.fields(struct):
            if (
                one.name not in texts(struct)
                or one.name in ASKED
                or (wanted.names and one.name not in {*wanted.names, *wanted.defaults})
            ):
                continue
            text, default = own.get(one.name) or texts(struct)[one.name], wanted.defaults.get(one.name, one.default)
            if default is msgspec.NODEFAULT and one.default_factory is msgspec.NODEFAULT and not wanted.optional:
                default = REQUIRED
            elif default is msgspec.NODEFAULT:
                default = None
            yield Option(one.name, spelled(one.name), one.type, default, text, name, one.name in rare)


def run(function: Callable[..., int | None], values: Sequence[Any], given: Mapping[str, Any]) -> int | None:
    """Call the function of a command with the arguments and options that cyclopts read, and return what it returns."""
    options = {one.name: one for one in options_of(function)}
    arguments = [one for one in options.values() if one.positional]
    made = {name: options[name].read(value) for name, value in given.items()}
    for name, (_, struct, wanted) in _parameters(function).items():
        if wanted is not None:
            own = {one: made.pop(one) for one in list(made) if options[one].owner == name}
            made[name] = partial(_made, struct, wanted.defaults, **own)
    return function(*(one.read(value) for one, value in zip(arguments, values, strict=False)), **made)


def _parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any, Fields | None]]:
    """Return the type of each parameter; for a ``partial`` also its struct and the fields that are options."""
    found: dict[str, tuple[Any, Any, Fields | None]] = {}
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name == "return":
            continue
        kind, *extras = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        if typing.get_origin(kind) is partial:
            found[name] = (kind, typing.get_args(kind)[0], next(iter(extras), Fields()))
        else:
            found[name] = (hint, None, None)
    return found


def _made(kind: Any, defaults: Mapping[str, Any], **fields: Any) -> Any:
    return read_settings(kind, {**defaults, **fields}, spelled=lambda path: spelled(path[0]))
