"""Methods by name: what their modules import, and how a class that declares nothing or is none is taken."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedsynth
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.federation.query import BUILT_IN, PUBLISHED, AnyQuery, Query, Selection, query_class
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import all_methods, find_method, method, method_names
from fedsynth.methods.auto import Auto
from fedsynth.methods.flaim import FLAIM
from fedsynth.methods.generators import GUM, PGM
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.registry import declared, options_of, read_options
from fedsynth.methods.tda import FedTDA
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Schema

FOLDER = Path(fedsynth.__file__).parent / "methods"
MODULES = sorted(f"fedsynth.methods.{path.stem}" for path in FOLDER.rglob("*.py") if path.stem != "__init__")
REPLICAS = ["fedsynth.bench.methods", "fedsynth.bench.published.tda_sums"]
HEAVY = ("pandas", "scipy", "sklearn", "torch", "pyarrow", "sqlite3", "cryptography", "fedsynth.models")

# What describes the networks that sites train: fields of the questions themselves, which import nothing heavy either.
NETWORKS = {"fedsynth.models", *(f"fedsynth.models.{name}" for name in (
    "diffusion", "encoders", "evidence", "gan", "networks", "one_hot", "saved", "vae"
))}  # fmt: skip


def imported(*modules: str) -> set[str]:
    """Return the modules that a fresh process holds after importing these."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", [*MODULES, *REPLICAS, "fedsynth.federation.query"])
def test_the_module_of_a_method_or_query_imports_nothing_heavy(module):
    """A site imports the module of what it is asked, and ``fedsynth methods`` those of all methods."""
    loaded = imported(module) - NETWORKS
    if module == "fedsynth.bench.methods":  # one replica trains networks, as the methods of the feature deep do
        loaded -= imported("fedsynth.deep.methods")
    heavy = {name for name in loaded if name.split(".")[0] in HEAVY or name.startswith("fedsynth.models")}
    assert not heavy


def test_every_query_of_fedsynth_is_known_to_sites():
    for module in (*MODULES, *REPLICAS, "fedsynth.federation.query"):
        __import__(module)

    def below(kind: type[AnyQuery]) -> list[type[AnyQuery]]:
        return [kind, *(one for child in kind.__subclasses__() for one in below(child))]

    found = [*below(Query), *below(Selection)]
    defined = {one.kind: one for one in found if one.kind and one.__module__.startswith("fedsynth.")}
    replicas = {kind: query_class(kind, None) for kind in PUBLISHED}
    assert {kind: query_class(kind) for kind in BUILT_IN} | replicas == defined
    assert set(replicas.values()) == {query for one in all_methods() if not one.private for query in one.queries}
    for kind, replica in replicas.items():
        with pytest.raises(Unsupported, match=r"name the class .* in \[policy\.kinds\]"):
            query_class(kind)
        assert query_class(kind, {kind: PUBLISHED[kind]}) is replica


@pytest.mark.parametrize("one", [one for one in all_methods() if not one.private], ids=lambda one: one.name)
def test_a_replica_that_is_not_private_is_asked_for_as_such(one):
    assert one.kind.__module__.startswith("fedsynth.bench.published.")
    assert one.kind.__name__ not in fedsynth.__all__
    for options in ({}, {"not_private": False}, {"not_private": 1}):
        with pytest.raises(InvalidParameter, match=f"{one.kind.__name__} is NOT PRIVATE.*--set not_private=true"):
            one.kind(**options)
    assert one.kind(**read_options(one.name, one.kind, {"not_private": True}, None)).not_private is True


def test_names_are_those_of_the_classes_and_their_rows_say_so():
    names = method_names()
    assert len(set(names)) == len(names)
    for one in all_methods():
        assert one.summary.endswith((".", ":"))
        assert one.summary.startswith("NOT PRIVATE") != one.private
        assert find_method(one.name).kind is one.kind
        place = f"{one.kind.__module__}:{one.kind.__name__}"
        assert (find_method(place).name, find_method(place).private) == (place, one.private)


@dataclass(frozen=True)
class Bare:
    width: int = 3

    def fit(self, federation):
        raise AssertionError


def test_a_class_that_declares_nothing_needs_nothing_and_is_private():
    found = declared(Bare, "tests:Bare")
    assert (found.name, found.kind) == ("tests:Bare", Bare)
    assert (found.needs_vault, found.private, found.queries) == (False, True, ())
    assert read_options("bare", Bare, {"width": 5}, None) == {"width": 5}
    with pytest.raises(InvalidParameter, match="a whole number"):
        read_options("bare", Bare, {"width": "wide"}, None)
    for other in (3, int, object(), Query):
        with pytest.raises(Unsupported, match="is not a method"):
            declared(other, "tests:other")


def test_a_decorated_class_of_another_package_has_no_name_without_an_entry_point():
    kind: type[Any] = method("of-a-test", needs_vault=True)(dataclass(frozen=True)(type("OfATest", (Bare,), {})))
    assert declared(kind, "tests:OfATest").needs_vault
    assert not declared(Bare, "tests:Bare").needs_vault
    with pytest.raises(Unsupported, match="no method named"):
        find_method("of-a-test")


def test_a_fit_that_returns_no_synthesizer_is_refused_by_what_it_returned():
    kind: type[Any] = method("of-none")(dataclass(frozen=True)(type("OfNone", (Bare,), {"fit": lambda *_: None})))
    schema = Schema((Categorical("a", ("x", "y")),))
    rows = pd.DataFrame({"a": ["x", "y"]})
    federation = federate([rows], schema, Budget(1.0, 1e-6), trust=TrustedServer())
    with pytest.raises(Unsupported, match="fit returned 'NoneType'; let the method return a Synthesizer"):
        kind().fit(federation)


@pytest.mark.parametrize("place", [".module:Class", "..:Class", ":Class", "module:", "tests:Nothing"])
def test_a_class_that_cannot_be_imported_is_no_method(place):
    with pytest.raises(Unsupported, match=r"write it as package\.module:name, and install .* PYTHONPATH"):
        find_method(place)


def test_options_are_written_by_name():
    for one in all_methods():
        options = {name: "none" if value is None else value for name, value in options_of(one.kind).items()}
        replica = {} if one.private else {"not_private": True}
        made = one.kind(**read_options(one.name, one.kind, options | replica, None))
        assert made == one.kind(**replica)
    assert options_of(OneShot) == {"pair_share": 0.8, "max_megabytes": 8.0, "iterations": 500, "bins_share": None}


def test_none_is_no_column_unless_a_column_is_called_so():
    columns = Categorical("a", ("x", "y")), Categorical("b", ("x", "y"))
    assert read_options("auto", Auto, {"target": "none"}, Schema(columns)) == {"target": None}
    assert read_options("auto", Auto, {"target": "b"}, Schema(columns)) == {"target": "b"}
    assert read_options("auto", Auto, {"target": "none"}, Schema((*columns, Categorical("none", ("x", "y"))))) == {
        "target": "none"
    }
    with pytest.raises(SchemaError, match="no column 'none'"):
        read_options("tda", FedTDA, {"target": "none"}, Schema(columns))


IMPOSSIBLE: dict[str, float] = {"negative": -3, "nan": math.nan, "inf": math.inf, "huge": 10**30}
LIMITS = {
    "max_megabytes": "no model is as large, which is as good as no limit",
    "useful": "no table is as full, so that columns are independent",
    "rare": "no value is as frequent, so that all of a column's values are merged",
}
"""Options for which a huge number means something, each with its meaning."""
NUMBERS = [
    pytest.param(kind, one.name, id=f"{kind.__name__}-{one.name}")
    for kind in (*(found.kind for found in all_methods() if found.kind.__module__.startswith("fedsynth.")), GUM, PGM)
    for one in dataclasses.fields(kind)
    if {"int", "float"} & {part.strip() for part in str(one.type).split("|")}
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_no_option_takes_a_number_that_cannot_be(kind, name):
    """Whoever makes a method learns of it then, not after questions are asked and paid for."""
    replica = {"not_private": True} if kind.__module__.startswith("fedsynth.bench.") else {}
    for said, number in IMPOSSIBLE.items():
        if said == "huge" and name in LIMITS:
            assert getattr(kind(**{name: number}, **replica), name) == number
            continue
        with pytest.raises((InvalidParameter, Unsupported)):
            kind(**{name: number}, **replica)


def test_every_number_among_the_options_is_tried():
    tried = {(param.values[0], param.values[1]) for param in NUMBERS}
    assert {(FLAIM, "steps"), (FLAIM, "rate"), (Auto, "survey_share"), (GUM, "sweeps")} <= tried
    assert {name for _, name in tried} >= set(LIMITS)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("auto", "survey_share", "pilot_share"),
        ("tda", "survey_share", "order_share"),
        ("fedmigration", "survey_share", "pair_share"),
        ("fedprivsyn", "one_share", "sketch_share"),
        ("adafedprivsyn", "one_share", "sketch_share"),
        ("privsyn", "one_share", "score_share"),
        ("fedvae", "survey_share", "size_share"),
        ("fedtabdiff", "survey_share", "size_share"),
    ],
)
def test_shares_that_leave_a_rounding_error_are_refused_when_a_method_is_made(name, first, second):
    """No site answers for the 1e-16 of the budget that are left, and by then the two shares would be spent."""
    for share, other in ((0.86 + 0.06, 0.08), (0.7, 0.3), (0.9, 0.1)):
        with pytest.raises(InvalidParameter, match=f"{first} = .* and {second} = .* leave nothing"):
            find_method(name).kind(**{first: share, second: other})
    assert 0.86 + 0.06 + 0.08 < 1
    with pytest.raises(InvalidParameter, match=first):
        find_method(name).kind(**{first: 1 - 2.0**-53})
