"""Code that is not fedsynth's is never called proved, and what rests on it is published only with a yes by name."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.world import BUDGET, COLUMNS, SCHEMA, counts, scores, table, tables
from typing_extensions import override

import fedsynth as fs
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.policy_file import policy_from_toml
from fedsynth.federation.query import AnyQuery, Counts, Position, Query
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import OneMessageSum, Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import method
from fedsynth.methods.flaim_scores import FLAIMSelection
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.privsyn import FedPrivSyn
from fedsynth.methods.registry import all_methods, rest_on_method
from fedsynth.plugins import built_in, place_of
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Rows, Table
from fedsynth.runs.job import Job
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Integers
from fedsynth.secure.site import SecureSum
from fedsynth.statement import Statement


class Loud(Query, frozen=True):
    """A million times the counts of a column, and a sensitivity of 1: the exact counts can be read off the noise."""

    kind: ClassVar[str] = "loud"

    column: Position

    def sensitivity(self, schema: Schema) -> Sensitivity:
        return Sensitivity(1, 1)

    def cells(self, schema: Schema) -> int:
        return schema.stored[self.column].size

    def row_range(self, schema: Schema) -> tuple[int, int]:
        return 0, 10**6

    def answer(self, rows: Rows) -> Integers:
        return 10**6 * rows.tables([Axis(self.column)], [(0,)])[0].astype(np.int64)


class OwnScores(FLAIMSelection, frozen=True):
    """A selection of another kind, though all of it is FLAIM's."""

    kind: ClassVar[str] = "own-scores"


class QuietCounts(Counts, frozen=True):
    """The built-in kind by name, with another sensitivity: sites and server take the built-in class for it."""

    def sensitivity(self, schema: Schema) -> Sensitivity:
        return Sensitivity(1e-9, 1e-9)


@dataclass(frozen=True)
class NoNoise(TrustedServer):
    """The trusted server by name, which adds nothing."""

    @override
    def aggregation(self, digest, release, norms, sites, bits):
        return OneMessageSum(tuple(sites), lambda exact: exact, lambda heard: self.std(release, norms, heard))


@dataclass(frozen=True)
class Same(LocalNoise):
    """Local noise, under a class of its own that changes nothing: nobody has looked whether that is so."""


@dataclass(frozen=True)
class Renamed(LocalNoise):
    name: ClassVar[str] = "local-by-us"


@method("mine")
@dataclass(frozen=True)
class Mine(OneShot):
    """One shot, in a class of its own."""


@dataclass(frozen=True)
class Undeclared(OneShot):
    """The same without a declaration."""


@dataclass(frozen=True)
class Swapping:
    """A method that asks under another trust than the run's."""

    def fit(self, federation: Federation) -> Any:
        return OneShot().fit(replace(federation, trust=NoNoise()))


def asked(trust: Trust, *queries: type[AnyQuery], unproved: tuple[str, ...] = (), **options: Any) -> Federation:
    """Return an unseeded federation of three sites."""
    return federate(tables(3), SCHEMA, BUDGET, trust=trust, queries=queries, unproved=unproved, **options)


def check_foreign(statement: Statement, place: str, claim: str) -> None:
    """The statement says at its place what is assumed, names the class, and forbids publication."""
    assert (statement.private, statement.publishable, statement.basis) == (True, False, "assumed")
    assert statement.headline.startswith("NOT FOR PUBLICATION: ")
    assert "(proved)" not in statement.text
    (condition,) = (one for one in statement.conditions if one.startswith("Assumed, not proved: "))
    assert claim in condition
    assert f"--unproved {place}" in condition


def test_a_query_that_lies_about_its_sensitivity_is_not_called_proved():
    federation = asked(TrustedServer(), Loud)
    released = federation.sum(Loud(0), 1.0)
    exact = np.sum([Loud(0).answer(rows) for rows in tables(3)], axis=0)
    assert np.array_equal(np.rint(released.values / 1e6), exact / 1e6)  # what the false sensitivity gives away
    check_foreign(federation.statement, place_of(Loud), f"which {place_of(Loud)} declares")
    accepted = asked(TrustedServer(), Loud, unproved=(place_of(Loud), "other:Thing"))
    accepted.sum(Loud(0), 1.0)
    said = accepted.statement
    assert (said.publishable, said.basis) == (True, "assumed")
    assert "whoever ran this accepted the class by name" in said.text
    assert "other:Thing" not in said.text


@pytest.mark.parametrize("verb", ["sum", "each", "choose"])
def test_every_verb_names_the_class_that_it_asked(verb):
    if verb == "choose":
        asked_for = scores()
        own = OwnScores(**{name: getattr(asked_for, name) for name in FLAIMSelection.__struct_fields__})
        federation = asked(LocalNoise(), OwnScores)
        federation.choose(own, 1.0)
        check_foreign(federation.statement, place_of(OwnScores), "the kind 'own-scores'")
    else:
        federation = asked(LocalNoise(), Loud)
        getattr(federation, verb)(Loud(1), 0.5)
        check_foreign(federation.statement, place_of(Loud), "the kind 'loud'")


def test_a_built_in_kind_is_answered_by_the_built_in_class():
    federation = asked(TrustedServer())
    query = QuietCounts(counts((0,)).axes, ((0,),))
    released = federation.sum(query, 1.0)
    plain = asked(TrustedServer()).sum(counts((0,)), 1.0)
    assert released.std == plain.std  # the noise is for the true sensitivity
    assert federation.statement.basis == "proved"


@pytest.mark.parametrize("trust", [NoNoise(), Same(), Renamed()], ids=lambda trust: type(trust).__name__)
def test_a_trust_of_ones_own_is_not_called_proved(trust):
    federation = asked(trust)
    check_foreign(federation.statement, place_of(type(trust)), f"that the trust '{trust.name}' adds the noise")
    accepted = asked(trust, unproved=(place_of(type(trust)),)).statement
    assert (accepted.publishable, accepted.basis) == (True, "assumed")
    made = fs.fit(table(60), SCHEMA, epsilon=1, delta=1e-6, method="oneshot", trust=trust)
    assert made.statement is not None
    check_foreign(made.statement, place_of(type(trust)), f"that the trust '{trust.name}' adds the noise")


@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise(), SecureSum()], ids=lambda trust: trust.name)
def test_what_is_built_in_is_proved(trust):
    federation = asked(trust)
    OneShot().fit(federation)
    assert federation.statement.foreign == ()
    assert federation.statement.publishable
    assert federation.statement.basis == ("computational" if trust.name == "secure" else "proved")


@pytest.mark.parametrize("kind", [Mine, Undeclared], ids=lambda kind: kind.__name__)
def test_a_method_that_runs_beside_the_rows_is_not_called_proved(kind):
    made = fs.fit(table(60), SCHEMA, epsilon=1, delta=1e-6, method=kind())
    assert made.statement is not None
    check_foreign(made.statement, place_of(kind), f"that {place_of(kind)}, of the method")
    again = fs.fit(table(60), SCHEMA, epsilon=1, delta=1e-6, method=kind(), unproved=[place_of(kind)]).statement
    assert again is not None
    assert (again.publishable, again.basis) == (True, "assumed")


def test_an_option_of_ones_own_is_not_called_proved_either():
    class Nothing:
        def generate(self, *args: Any) -> Any:
            raise RuntimeError("it is not run here")

    federation = asked(TrustedServer())
    rest_on_method(FedPrivSyn(generator=Nothing()), federation)
    check_foreign(federation.statement, place_of(Nothing), f"that {place_of(Nothing)}, of the method fedprivsyn,")
    for one in all_methods():
        if not one.kind.__module__.startswith("tests.") and one.private:
            rest_on_method(one.kind(), plain := asked(TrustedServer()))
            assert plain.statement.publishable, one.name


def test_where_the_server_sees_no_counts_a_method_cannot_reach_the_rows():
    for trust, reaches in ((TrustedServer(), True), (LocalNoise(), False), (SecureSum(), False)):
        deployed = replace(asked(trust), simulated=False)
        Mine().fit(deployed)
        assert deployed.statement.publishable != reaches


def test_a_real_site_that_answers_a_query_has_accepted_its_class():
    deployed = replace(asked(LocalNoise(), Loud), simulated=False)
    deployed.sum(Loud(0), 0.5)
    assert (deployed.statement.publishable, deployed.statement.basis) == (True, "assumed")
    assert "every site that answered accepted the class by name" in deployed.statement.text


def test_a_method_cannot_hide_the_trust_that_it_asked_under():
    federation = asked(TrustedServer())
    Swapping().fit(federation)
    assert not federation.statement.publishable
    assert place_of(NoNoise) in federation.statement.text


def test_no_class_takes_the_place_of_a_built_in_one_by_its_name():
    """Names can be chosen: what counts is the class itself."""
    fake = types.ModuleType("fedsynth.evil")
    sys.modules[fake.__name__] = fake
    try:
        for kind, place in ((NoNoise, "fedsynth.federation.trusted:TrustedServer"), (Same, "fedsynth.evil:Same")):
            module, _, name = place.partition(":")
            forged: Any = dataclass(frozen=True)(type(name, (kind,), {"__module__": module, "__qualname__": name}))
            setattr(fake, name, forged)
            assert place_of(forged) == place
            federation = asked(forged())
            assert not federation.statement.publishable
            assert federation.statement.basis == "assumed"
        forged_method: Any = dataclass(frozen=True)(type("OneShot", (OneShot,), {"__module__": "fedsynth.evil"}))
        fake.OneShot = forged_method  # type: ignore[attr-defined]
        assert not built_in(forged_method)
        by_name = type("OneShot", (OneShot,), {"__module__": OneShot.__module__, "__qualname__": "OneShot"})
        assert not built_in(by_name)
    finally:
        del sys.modules[fake.__name__]


def test_every_method_of_fedsynth_is_built_in():
    assert all(built_in(one.kind) for one in all_methods() if not one.kind.__module__.startswith("tests."))
    assert not built_in(Mine)


def test_rows_of_another_class_could_count_as_they_like():
    class Heavy(Table):
        def tables(self, axes, cliques):
            return [1000 * found for found in super().tables(axes, cliques)]

    rows = table(50)
    with pytest.raises(SchemaError, match="rows of site 'north' are of the class Heavy"):
        federate({"north": Heavy(rows.schema, rows.codes, rows.numbers)}, SCHEMA, BUDGET, trust=LocalNoise())


def test_the_yes_and_the_claim_are_in_the_files(tmp_path: Path):
    made = fs.fit(table(80), SCHEMA, epsilon=1, delta=1e-6, method=Mine(), trust=Same(), unproved=[place_of(Same)])
    made.save(tmp_path / "model.fedsynth")
    again = fs.load(tmp_path / "model.fedsynth")
    assert again.statement == made.statement
    assert made.statement is not None
    assert [(part.role, part.accepted) for part in made.statement.foreign] == [("method", False), ("trust", True)]
    assert not made.statement.publishable  # one yes is not the other
    assert len(again.schema.columns) == COLUMNS


def test_a_weak_delta_is_refused_wherever_rows_are():
    with pytest.raises(InvalidParameter, match="--weak-delta"):
        federate(tables(2), SCHEMA, fs.Budget(1, 0.999999), trust=LocalNoise())
    section = {"budget": {"epsilon": 1.0, "delta": 0.5}, "trusts": {"local": {}}}
    with pytest.raises(InvalidParameter, match="weak_delta = true in a file"):
        policy_from_toml(section)
    assert policy_from_toml({**section, "weak_delta": True}).budget.delta == 0.5
    with pytest.raises(InvalidParameter, match="--weak-delta"):
        Job("auto", 1.0, 0.5)
    assert Job.from_toml(Job("auto", 1.0, 0.5, weak_delta=True).to_toml()).weak_delta
