"""Settings: structs whose fields are entries of files and options of commands, each declared once.

A field has a type with its bounds (``msgspec.Meta``), a default, and a text: the string literal below it. From these
come the parser of a file (:func:`read_settings`), the options of a command with their help
(:mod:`fedsynth.cli.adapter`), and the lines of the reference pages.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from numbers import Integral
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from fedsynth.errors import FedsynthError, InvalidParameter, nearest

_Kind = TypeVar("_Kind")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of structs of settings: their bounds are checked however they are made.

    Raises :class:`~fedsynth.errors.InvalidParameter` for a value outside the bounds of its field.
    """

    def __post_init__(self) -> None:
        """Check the bounds, which msgspec itself does only when it reads a file."""
        for name, kind in bounded(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, Integral) and not isinstance(value, int):  # of NumPy, say
                msgspec.structs.force_setattr(self, name, value := int(value))
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise InvalidParameter(f"{name}: {_complaint(kind, value)}") from error


def as_toml(path: Sequence[str]) -> str:
    """Return how an entry is written in a TOML file, from the names of the tables around it and its own."""
    *tables, name = path or [""]
    return f"[{'.'.join(tables)}] {name}" if tables else name


def read_settings(
    kind: type[_Kind], content: Mapping[str, Any], where: str = "", spelled: Callable[[Sequence[str]], str] = as_toml
) -> _Kind:
    """Return the struct of the class ``kind`` that a mapping describes, such as the content of a TOML file.

    ``where`` begins the message of an error, such as the file's name; ``spelled`` returns how the user writes an entry,
    from the names of the tables around it and its own. Raises :class:`~fedsynth.errors.InvalidParameter` for an entry
    that is missing, unknown, of the wrong type or out of bounds, and the errors that the struct itself raises.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, FedsynthError):
            raise type(error.__cause__)(f"{where}{': ' * bool(where)}{error.__cause__}") from error
        said, _, place = str(error).partition(" - at ")
        path = [name or number for name, number in re.findall(r"\.([^.\[`]+)|\[(.*?)\]", place)]
        named = re.search("(missing required|contains unknown) field `(.*)`", said)
        if named and named[1].startswith("missing"):
            text = f"{spelled([*path, named[2]])} is missing"
        elif named:
            text = f"{spelled([*path, named[2]])} is unknown; {nearest(named[2], _names(kind, path), 'known are')}"
        else:
            entry: Any = reduce(_type_of, path, kind)
            found: Any = reduce(_value_of, path, content)
            if place.startswith("`key`"):
                entry, found = typing.get_args(members(entry)[0])[0], ", ".join(found)
            shown = [name for name in path if name != "..." and not name.isdigit()]
            text = f"{spelled(shown)}: {_complaint(entry, found)}"
        raise InvalidParameter(f"{where}{': ' * bool(where)}{text}") from error


def with_keywords(kind: type[msgspec.Struct]) -> Callable[[_Function], _Function]:
    """A decorator by which the signature of a function with ``**options`` shows the fields of a struct in their place.

    ``help`` and notebooks take names and defaults from there; type checkers read the annotation of ``**options``.
    """

    def decorate(function: _Function) -> _Function:
        before = inspect.signature(function)
        (*own, _), hints = before.parameters.values(), typing.get_type_hints(kind)
        keywords = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
            for one in msgspec.structs.fields(kind)
        ]
        function.__signature__ = before.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return decorate


@cache
def texts(kind: type) -> dict[str, str]:
    """Return the texts of a struct's fields by name: the string literals below them, without line breaks."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[: kind.__mro__.index(msgspec.Struct)]):
        before = ""
        for node in _bodies(one.__module__).get(one.__name__, ()):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and before:
                found[before] = " ".join(str(node.value.value).split())
            before = node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""
    return found


@cache
def bounded(kind: type) -> dict[str, Any]:
    """Return the types of those fields of a struct that have bounds, by name."""
    return {one.name: one.type for one in msgspec.structs.fields(kind) if bounds_of(one.type)}


def bounds_of(kind: Any) -> str:
    """Return the bounds of a type in words, such as "at least 1"; empty if it has none."""
    found = [(words, getattr(meta, name)) for meta in _metas(kind) for name, words in _LIMITS.items()]
    return ", ".join(f"{words} {limit:,}".removesuffix(".0") for words, limit in found if limit is not None)


def members(kind: Any) -> list[Any]:
    """Return the types that a type admits, without their bounds and without ``None``."""
    if typing.get_origin(kind) is Annotated:
        return members(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (UnionType, typing.Union):
        return [inner for one in typing.get_args(kind) for inner in members(one)]
    return [] if kind is type(None) else [kind]


def _metas(kind: Any) -> list[msgspec.Meta]:
    if typing.get_origin(kind) in (UnionType, typing.Union):
        return [meta for one in typing.get_args(kind) for meta in _metas(one)]
    return [one for one in typing.get_args(kind) if isinstance(one, msgspec.Meta)]


@cache
def _bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of each class of a module by its name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _type_of(kind: Any, name: str) -> Any:
    """Return the type of an entry of a struct, a mapping or a list."""
    for one in members(kind):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return next((field.type for field in msgspec.structs.fields(one) if field.encode_name == name), Any)
        if inner := [of for of in typing.get_args(one) if of is not Ellipsis and typing.get_origin(one) is not Literal]:
            return inner[-1]
    return Any


def _value_of(content: Any, name: str) -> Any:
    """Return an entry of a mapping or a list; of one that msgspec names by ``...``, which is any, the whole."""
    if isinstance(content, list) and name.isdigit():
        return content[int(name)]
    return content.get(name, content) if isinstance(content, Mapping) else content


def _names(kind: Any, path: Sequence[str]) -> list[str]:
    """Return the names of the entries of the struct at ``path``."""
    found = [one for one in members(reduce(_type_of, path, kind)) if isinstance(one, type)]
    return [name for one in found if issubclass(one, msgspec.Struct) for name in one.__struct_encode_fields__]


def _complaint(kind: Any, found: Any) -> str:
    """Return what is wrong with a value that is not of a type."""
    kinds = members(kind)
    if len(kinds) == 1 and typing.get_origin(kinds[0]) is Literal and isinstance(found, str):
        return f"{found!r} is unknown; {nearest(found, typing.get_args(kinds[0]))}"
    described = [meta.description for meta in _metas(kind) if meta.description]
    bounds = bounds_of(kind)
    limit = f" of {bounds}" if bounds.startswith("at ") else f" {bounds}" if bounds else ""
    return f"expected {' or '.join(described or map(_words, kinds))}{limit}, not {found!r}"


def _words(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (list, tuple, frozenset):
        return "a list of texts" if members(inner[0])[0] is str else "a list"
    return _WORDS.get(kind, "a table of entries")
