"""The registry of methods by name, and the written form of their options.

A method declares its name, its needs and its exemptions where it is defined (:func:`method`); there is no second list
of methods. Fedsynth's own methods are the decorated classes of this package's modules, which import models only inside
``fit``. Other packages register theirs as entry points of the group ``fedsynth.methods``.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.plugins import installed, load, named

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.federation.query import AnyQuery
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.schema import Schema

GROUP = "fedsynth.methods"
"""Entry point group of other packages' methods."""

Promise = Literal["whole budget", "any split", "any trust", "pure budget", "public sizes"]
"""A promise of the contract suite that a method may be exempt from, with a reason: that the most charged site spends
the whole budget; that without noise the result depends neither on the split of rows over sites nor on the trust model;
that it runs under budgets with delta = 0; and that it runs where numbers of rows are public."""


class Method(Protocol):
    """A frozen dataclass of hyper-parameters that can be fitted to a federation."""

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget and return the fitted synthesizer."""


_Kind = TypeVar("_Kind", bound=Method)


@dataclass(frozen=True, eq=False)
class Registration:
    """A method's class and its declared properties; the fields are described at :func:`method`."""

    name: str
    kind: type[Any]
    needs_vault: bool = False
    needs_scores: bool = False
    adaptive: bool = True
    private: bool = True
    trains: bool = False
    queries: tuple[type[AnyQuery], ...] = ()
    exempt: Mapping[Promise, str] = field(default_factory=dict)

    def runs_under(self, trust: str) -> bool:
        """Whether it can run under the named trust model; three servers hold deposits, but open no scores or sums."""
        if trust == "three-servers":
            return self.needs_vault and not self.needs_scores
        return trust == "trusted" or not self.needs_vault

    @property
    def summary(self) -> str:
        """The first line of the class's documentation."""
        return (self.kind.__doc__ or "").partition("\n")[0]


_DECLARED: dict[object, Registration] = {}


def method(
    name: str,
    *,
    needs_vault: bool = False,
    needs_scores: bool = False,
    adaptive: bool = False,
    private: bool = True,
    trains: bool = False,
    queries: tuple[type[AnyQuery], ...] = (),
    exempt: Mapping[Promise, str] | None = None,
) -> Callable[[type[_Kind]], type[_Kind]]:
    """Register a frozen dataclass with a ``fit`` method as the synthesis method ``name``; a decorator.

    Parameters
    ----------
    name
        Its name on the command line.
    needs_vault
        Whether it runs only under a trust model that can hold exact sums, or secret shares of them.
    needs_scores
        Whether it runs only under a trust model whose vault releases noisy scores of all candidates.
    adaptive
        Whether, with its default options, later queries depend on earlier answers, so that a forecast of its messages
        is a range.
    private
        False for a replica of a published method that releases without noise under any budget: NOT PRIVATE.
    trains
        Whether sites train a network, which needs PyTorch (the extra ``deep``) and takes minutes.
    queries
        Its own queries and selections that are not part of fedsynth. Simulated sites answer them; a deployed site
        answers them if its policy names them (``[policy.kinds]``).
    exempt
        The contract suite's promises that it does not keep, each with the reason.
    """

    def declare(kind: type[_Kind]) -> type[_Kind]:
        _DECLARED[kind] = Registration(
            name, kind, needs_vault, needs_scores, adaptive, private, trains, queries, exempt or {}
        )
        return kind

    return declare


@cache
def _own() -> dict[str, Registration]:
    """Return fedsynth's own methods, by name."""
    package = import_module("fedsynth.methods")
    for found in pkgutil.iter_modules(package.__path__, "fedsynth.methods."):
        import_module(found.name)
    declared = (one for one in _DECLARED.values() if one.kind.__module__.startswith("fedsynth.methods."))
    by_name: dict[str, Registration] = {}
    for one in declared:
        if by_name.setdefault(one.name, one) is not one:
            raise Unsupported(f"two methods of fedsynth are called {one.name!r}; rename one of them")
    return by_name


def method_names() -> list[str]:
    """Return the name of every method: fedsynth's own, then those of other packages, which are not imported."""
    own = _own()
    return [*own, *installed(GROUP, own)]


def all_methods() -> list[Registration]:
    """Return every registered method; raises :class:`Unsupported` if two packages register the same name."""
    own = _own()
    return [*own.values(), *(declared(load(entry), name) for name, entry in installed(GROUP, own).items())]


def find_method(text: str) -> Registration:
    """Return the method named by a registered name or ``package.module:Class``; else raises :class:`Unsupported`."""
    if ":" in text:
        return declared(named(text), text)
    own = _own()
    other = installed(GROUP, own, text)
    if text in own:
        return own[text]
    if text in other:
        return declared(load(other[text]), text)
    raise Unsupported(f"no method named {text!r}; {nearest(text, method_names())}")


def declared(kind: Any, name: str) -> Registration:
    """Return a class's registration, or a default one; raises :class:`Unsupported` if it is not a method."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and callable(getattr(kind, "fit", None))):
        raise Unsupported(f"{name!r} is not a method; a method is a frozen dataclass with a function fit(federation)")
    return dataclasses.replace(_DECLARED.get(kind) or Registration(name, kind), name=name)


# ---------------------------------------------------------------------------------------------------------------------
# The written form of options

_OBJECTS = "fedsynth.objects"
COLUMN: Mapping[str, Any] = {"fedsynth.column": True}
"""Metadata of a field that holds the position of a column; its written form is the column's name."""


COHORT_RATE: Mapping[str, Any] = {"fedsynth.cohort_rate": True}
"""Metadata of a field that is the sampling rate of sites; a forecast also considers a rate of 1, the worst case."""


def one_of(**kinds: type) -> Mapping[str, Any]:
    """Return the metadata of a field that holds an object, written as one of these names and made with defaults."""
    return {_OBJECTS: kinds}


def read_options(method: str, kind: Any, options: Mapping[str, Any], schema: Schema | None) -> dict[str, Any]:
    """Parse a method's options from their written form into values of the types of their fields.

    Columns and objects are written by name (``target=income``, ``generator=pgm``), and ``none`` is ``None`` where the
    option allows it; numbers and true or false stand for themselves. Without a schema, options that name a column are
    left out. Raises :class:`Unsupported` for an unknown option, :class:`InvalidParameter` for an invalid value.
    """
    known = options_of(kind)
    if unknown := sorted(set(options) - set(known)):
        raise Unsupported(f"{method} has no option {', '.join(unknown)}; {nearest(unknown[0], known, 'it has')}")
    fields = {one.name: one for one in dataclasses.fields(kind)}
    found: dict[str, Any] = {}
    for name, value in options.items():
        objects: Mapping[str, type] = fields[name].metadata.get(_OBJECTS, {})
        if objects and isinstance(value, str):
            if value not in objects:
                raise InvalidParameter(f"{name} = {value!r}: {nearest(value, objects)}")
            found[name] = objects[value]()
        elif COLUMN.items() <= fields[name].metadata.items() and isinstance(value, str):
            if schema is not None:
                found[name] = schema.index(value)
        elif value == "none" and "None" in _types(fields[name]):
            found[name] = None
        else:
            found[name] = _of_type(fields[name], value)
    return found


def options_of(kind: Any) -> dict[str, Any]:
    """Return the options of a method that have a written form, with their defaults; objects by their names."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(kind):
        if _OBJECTS in one.metadata:
            found[one.name] = next(name for name, made in one.metadata[_OBJECTS].items() if made is one.default_factory)
        elif one.name != "workload":
            found[one.name] = one.default
    return found


def _types(one: dataclasses.Field[Any]) -> Set[str]:
    """Return the names of a field's types, whether its module postpones annotations or not."""
    text = one.type.__name__ if isinstance(one.type, type) else str(one.type)
    return {part.strip() for part in text.split("|")}


def _of_type(one: dataclasses.Field[Any], value: Any) -> Any:
    """Return an option's value; raises :class:`InvalidParameter` if it has none of its field's types."""
    types = _types(one)
    admitted = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "None": "none"}
    if not any(type(value) in admitted.get(kind, ()) for kind in types):
        wanted = ["a column's name"] if COLUMN.items() <= one.metadata.items() else []
        wanted += [text for kind, text in words.items() if kind in types]
        wanted += ["one of " + ", ".join(one.metadata[_OBJECTS])] if _OBJECTS in one.metadata else []
        raise InvalidParameter(f"{one.name} = {value!r}: give {' or '.join(wanted)}")
    return value
