"""The registry of methods by name, and the written form of their options.

A method declares what it needs of the trust model, and which promises of the test suite it does not keep, where it is
defined (:func:`method`); there is no second list of methods. Fedsynth's own methods are the decorated classes of this
package's modules, which import most models only inside ``fit``, and those that features list in a module ``methods``
(:data:`fedsynth.plugins.FEATURES`). Other packages register theirs as entry points of the group ``fedsynth.methods``.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from fedsynth.errors import InvalidParameter, Unsupported, listed, nearest
from fedsynth.methods.learned import learn
from fedsynth.plugins import FEATURES, built_in, installed, load, named, of_features, place_of
from fedsynth.trusts import TRUSTS

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.federation.query import AnyQuery, Extent
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.schema import Schema

GROUP = "fedsynth.methods"
"""Entry point group of other packages' methods."""

Promise = Literal["whole budget", "any split", "any trust", "pure budget", "public sizes"]
"""A promise of the contract suite that a method may be exempt from, with a reason: that the most charged site spends
the whole budget; that without noise the result depends neither on the split of rows over sites nor on the trust model;
that it runs under budgets with delta = 0; and that it runs where numbers of rows are public."""


class Method(Protocol):
    """A synthesis method: a frozen dataclass whose fields are its options and whose ``fit`` runs it over a federation.

    No base class is needed: :func:`method` registers any such class. Options out of range raise
    :class:`InvalidParameter`, most of them when the object is made.
    """

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the budget of ``federation`` at its sites and return the fitted generator of synthetic rows.

        Rows are then drawn by the synthesizer's ``sample``, at no further privacy cost.

        Raises :class:`InvalidParameter` for an option that does not suit the schema or the budget, :class:`Unsupported`
        if the trust model or the kind of budget cannot serve the method, :class:`Refused` if a site's policy forbids a
        question, :class:`BudgetExceeded` if a site has no budget left for it, and :class:`SiteLost` if too few sites
        answer.
        """


_Kind = TypeVar("_Kind", bound=Method)


@dataclass(frozen=True, eq=False)
class Registration:
    """A registered method: its ``name``, its class ``kind``, and the properties declared with :func:`method`.

    ``needs_vault`` and ``needs_scores`` decide under which trust models it runs (:meth:`runs_under`). A class that was
    not decorated is registered with the defaults of this class.
    """

    name: str
    kind: type[Any]
    needs_vault: bool = False
    needs_scores: bool = False
    adaptive: bool = True
    private: bool = True
    trains: bool = False
    queries: tuple[type[AnyQuery], ...] = ()
    exempt: Mapping[Promise, str] = field(default_factory=dict)
    order: int | Callable[[Any], int] | None = None
    apportions: bool = False

    def limits(self, options: Any, schema: Schema) -> Extent:
        """Return the largest tables that one question of the method may ask for, for plans.

        ``options`` is the method's object. The limits hold for every run on ``schema``, whatever sites answer: the
        tables of one question have at most ``order`` columns each, no two have the same columns but for those of single
        columns in a survey, and columns have the groups that :func:`~fedsynth.methods.survey.largest_tables` says.
        """
        from fedsynth.methods.survey import largest_tables

        order = self.order(options) if callable(self.order) else self.order
        largest = largest_tables(schema, len(schema.stored) if order is None else order)
        if schema.learned:
            cells = sum(lookup.finer.size * lookup.column.size for lookup in schema.learned)
            return largest._replace(order=max(2, largest.order), cells=max(cells, largest.cells))
        return largest

    def runs_under(self, trust: str) -> bool:
        """Return whether the method runs under the trust model named ``trust``; true of an unknown name."""
        facts = TRUSTS.get(trust)
        return facts is None or (facts.scores if self.needs_scores else facts.vault if self.needs_vault else facts.sums)

    def check_trust(self, trust: str) -> None:
        """Raise :class:`Unsupported`, with the trust models to choose from, unless the method runs under ``trust``."""
        if not self.runs_under(trust):
            able = " or ".join(f"--trust {name}" for name in TRUSTS if self.runs_under(name))
            raise Unsupported(f"{self.name} does not run under the trust {trust}; add {able}")

    @property
    def summary(self) -> str:
        """The first line of the method class's docstring, which ``fedsynth methods`` prints."""
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
    order: int | Callable[[Any], int] | None = None,
    apportions: bool = False,
) -> Callable[[type[_Kind]], type[_Kind]]:
    """Register a frozen dataclass with a ``fit`` method as the synthesis method ``name``; used as a class decorator.

    The class is returned; the synthesizers that its ``fit`` makes get the run's privacy statement and the summary of
    its ledger (:func:`stated`). A class outside fedsynth also needs an entry point of the group ``fedsynth.methods`` to
    be found by its name; without one it is named as ``package.module:Class``.

    Parameters
    ----------
    name
        Its name on the command line.
    needs_vault
        Whether it runs only under a trust model with a vault (:class:`~fedsynth.federation.vault.Vault`).
    needs_scores
        Whether it also needs noisy scores of all candidates for a selection, not only the candidate selected; a vault
        in secret shares cannot release them.
    adaptive
        Whether, with its default options, what sites are asked later depends on earlier answers, so that a forecast of
        its messages is a range.
    private
        False for a replica of a published method that releases without noise under any budget: NOT PRIVATE.
    trains
        Whether sites train a network, which needs PyTorch (the extra ``deep``) and takes minutes.
    queries
        Classes of its own queries and selections that are not part of fedsynth. Simulated sites answer them if they are
        passed to ``federate(..., queries=...)``; a deployed site answers them if its policy names them
        (``[policy.kinds]``).
    exempt
        The promises (:data:`Promise`) of the contract suite that it does not keep, each with the reason.
    order
        The largest number of columns in one table that it asks sites for, or a function that returns it for the
        method's object. Plans state it, and sites refuse larger tables; ``None``: tables of any number of columns.
    apportions
        Whether released numbers, such as that of all rows, decide how the budget is divided between its questions. A
        dry run on another number of rows then shows other prices, and a plan allows more than it has seen.
    """

    def declare(kind: type[_Kind]) -> type[_Kind]:
        fit = kind.fit

        @wraps(fit)
        def fit_and_state(self: _Kind, federation: Federation) -> Synthesizer:
            rest_on_method(self, federation)
            remaining, tables = learn(federation)
            synthesizer = stated(fit(self, remaining), remaining)
            if not tables:
                return synthesizer
            return dataclasses.replace(synthesizer, schema=synthesizer.schema.with_tables(tables))

        kind.fit = fit_and_state  # type: ignore[method-assign, assignment]
        _DECLARED[kind] = Registration(
            name, kind, needs_vault, needs_scores, adaptive, private, trains, queries, exempt or {}, order, apportions
        )
        return kind

    return declare


def stated(synthesizer: Synthesizer, federation: Federation) -> Synthesizer:
    """Return a fitted synthesizer with its run's privacy statement and the summary of its ledger.

    Raises :class:`Unsupported` if what a method returned is no synthesizer.
    """
    from fedsynth.models.synthesizer import Synthesizer

    if not isinstance(synthesizer, Synthesizer):
        raise Unsupported(f"fit returned {type(synthesizer).__name__!r}; let the method return a Synthesizer")
    statement = federation.statement
    if statement.records is None:
        statement = dataclasses.replace(statement, records=float(synthesizer.model.total))
    return dataclasses.replace(synthesizer, statement=statement, releases=federation.ledger.summary())


def rest_on_method(method: Method, federation: Federation) -> None:
    """Note that the guarantee rests on the classes of a ``method``, and of its options, that are not fedsynth's.

    They can reach the rows where the method runs beside them, as in a simulation, and exact counts where the server
    sees these. Elsewhere they learn what the sites answer, and nothing else.
    """
    if federation.simulated or federation.trust.confidential:
        for place in dict.fromkeys(_foreign(method)):
            federation.rest_on("method", name_of(method), place)


def _foreign(value: Any) -> Iterator[str]:
    """Yield the classes and functions of a method or option that are not fedsynth's; plain values have none."""
    if isinstance(value, Mapping):
        yield from _foreign(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _foreign(part)
    else:
        kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
        if kind.__module__ not in ("builtins", "numpy") and not built_in(kind):
            yield place_of(kind)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for option in dataclasses.fields(value):
                yield from _foreign(getattr(value, option.name))


@cache
def _own() -> dict[str, Registration]:
    """Return fedsynth's own methods, by name."""
    package = import_module("fedsynth.methods")
    for found in pkgutil.iter_modules(package.__path__, "fedsynth.methods."):
        import_module(found.name)
    of_features("methods")
    by_name: dict[str, Registration] = {}
    for registered in _DECLARED.values():
        own = registered.kind.__module__.startswith(("fedsynth.methods.", *FEATURES))
        if own and by_name.setdefault(registered.name, registered) is not registered:
            raise Unsupported(f"two methods of fedsynth are called {registered.name!r}; rename one of them")
    return by_name


def method_names() -> list[str]:
    """Return the name of every method: fedsynth's own, then those of other packages, which are not imported."""
    own = _own()
    return [*own, *installed(GROUP, own)]


def all_methods() -> list[Registration]:
    """Return all registrations, importing other packages' methods; raises errors as :func:`find_method` does."""
    own = _own()
    return [*own.values(), *(declared(load(entry), name) for name, entry in installed(GROUP, own).items())]


def find_method(text: str) -> Registration:
    """Return the registration of the method that ``text`` names: a registered name or ``package.module:Class``.

    Raises :class:`Unsupported` for an unknown name (the message suggests the nearest known one), for a name that two
    packages register, and for a class that cannot be imported or is not a method.
    """
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
    """Return the registration of the method class ``kind``, whether it was decorated with :func:`method` or not.

    ``name`` is how the user named the class; it becomes the registration's name, and the error quotes it. Raises
    :class:`Unsupported` if ``kind`` is not a dataclass with a function ``fit``.
    """
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and callable(getattr(kind, "fit", None))):
        raise Unsupported(f"{name!r} is not a method; a method is a frozen dataclass with a function fit(federation)")
    return dataclasses.replace(_DECLARED.get(kind) or Registration(name, kind), name=name)


def name_of(method: Method) -> str:
    """Return the name under which :func:`find_method` finds a method's class."""
    kind = type(method)
    known = _DECLARED.get(kind)
    return known.name if known else place_of(kind)


# ---------------------------------------------------------------------------------------------------------------------
# The written form of options

_OBJECTS = "fedsynth.objects"
COLUMN: Mapping[str, Any] = {"fedsynth.column": True}
"""Metadata of a field that holds the name of a column, which is checked as soon as there is a schema."""


def category(schema: Schema, target: str) -> int:
    """Return the position in ``schema.stored`` of the categorical column ``target``; -1 for "", which is none.

    Methods call it before they ask a question. Raises :class:`SchemaError` for an unknown column, and
    :class:`InvalidParameter` for one of numbers or times.
    """
    if not target:
        return -1
    at = schema.index(target)
    if schema.stored[at].is_number:
        categories = [column.name for column in schema.stored if not column.is_number]
        raise InvalidParameter(
            f"column {target!r} is a number, and the target must be a categorical column: {listed(categories)}, or "
            "leave --set target=... out"
        )
    return at


COHORT_RATE: Mapping[str, Any] = {"fedsynth.cohort_rate": True}
"""Metadata of a field that is the sampling rate of sites; a forecast also considers a rate of 1, the worst case."""


def one_of(**kinds: type) -> Mapping[str, Any]:
    """Return metadata for a dataclass field whose value is an object that users choose by name.

    ``field(default_factory=GUM, metadata=one_of(gum=GUM, pgm=PGM))`` is written ``generator=pgm``, which stands for an
    instance of that class with default options.
    """
    return {_OBJECTS: kinds}


def read_options(method: str, kind: Any, options: Mapping[str, Any], schema: Schema | None) -> dict[str, Any]:
    """Parse a method's ``options`` from their written form into the arguments of its class ``kind``.

    Columns and objects are written by name (``target=income``, ``generator=pgm``), ``none`` is ``None`` where the
    option allows it (unless it names a column), and numbers, text and true or false stand for themselves. Raises
    :class:`Unsupported` for an unknown option, :class:`InvalidParameter` for an invalid value, and, if there is a
    ``schema``, :class:`SchemaError` for an unknown column. ``method`` is the method's name, for messages.
    """
    known = options_of(kind)
    if unknown := sorted(set(options) - set(known)):
        raise Unsupported(f"{method} has no option {', '.join(unknown)}; {nearest(unknown[0], known, 'it has')}")
    fields = {one.name: one for one in dataclasses.fields(kind)}
    arguments: dict[str, Any] = {}
    for name, value in options.items():
        objects: Mapping[str, type] = fields[name].metadata.get(_OBJECTS, {})
        column = COLUMN.items() <= fields[name].metadata.items()
        called_none = column and schema is not None and "none" in schema.names
        if objects and isinstance(value, str):
            if value not in objects:
                raise InvalidParameter(f"{name} = {value!r}: {nearest(value, objects)}")
            arguments[name] = objects[value]()
        elif value == "none" and "None" in _types(fields[name]) and not called_none:
            arguments[name] = None
        else:
            arguments[name] = _of_type(fields[name], value)
            if column and value and schema is not None:
                schema.index(value)
    return arguments


def options_of(kind: Any) -> dict[str, Any]:
    """Return the default values of the options of the method class ``kind`` by name, as one writes them in job.toml.

    ``workload`` cannot be written as one value and is left out.
    """
    defaults: dict[str, Any] = {}
    for option in dataclasses.fields(kind):
        if _OBJECTS in option.metadata:
            kinds = option.metadata[_OBJECTS].items()
            defaults[option.name] = next(name for name, made in kinds if made is option.default_factory)
        elif option.name != "workload":
            defaults[option.name] = option.default
    return defaults


def _types(option: dataclasses.Field[Any]) -> Set[str]:
    """Return the names of a field's types, whether its module postpones annotations or not."""
    text = option.type.__name__ if isinstance(option.type, type) else str(option.type)
    return {part.strip() for part in text.split("|")}


def _of_type(option: dataclasses.Field[Any], value: Any) -> Any:
    """Return an option's value; raises :class:`InvalidParameter` if it has none of its field's types."""
    types = _types(option)
    admitted = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "None": "none"}
    if not any(type(value) in admitted.get(kind, ()) for kind in types):
        wanted = ["a column's name"] if COLUMN.items() <= option.metadata.items() else []
        wanted += [text for kind, text in words.items() if kind in types]
        wanted += ["one of " + ", ".join(option.metadata[_OBJECTS])] if _OBJECTS in option.metadata else []
        raise InvalidParameter(f"{option.name} = {value!r}: give {' or '.join(wanted)}")
    return value
