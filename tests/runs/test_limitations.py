"""What travels with a model: small groups and lost columns, found without a row, in the file and in about.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from tests.world import BUDGET, REGION, SCHEMA, SEX, TRUSTS, counts, table, tables

import fedsynth
from fedsynth.archive import pack, unpack
from fedsynth.data.partition import parse_partition, split
from fedsynth.encoding import decode, encode
from fedsynth.errors import FedsynthError
from fedsynth.federation.federation import Federation
from fedsynth.federation.noise_record import NoiseRecord
from fedsynth.federation.simulate import federate
from fedsynth.methods.auto import Auto
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.registry import all_methods
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.card import HiddenGroups, Limitations, LostColumn, card_html, card_markdown
from fedsynth.models.synthesizer import Synthesizer, load, own_bins
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.runs.job import Job
from fedsynth.runs.limitations import lost_columns, small_groups, with_limitations
from fedsynth.runs.run import run_simulated
from fedsynth.schema import (
    Boolean,
    Categorical,
    Datetime,
    Numeric,
    Schema,
    Stored,
)
from fedsynth.secure.site import SecureSum

MANY = Schema(
    (Categorical("code", tuple(f"c{at}" for at in range(40))), Categorical("sick", ("no", "yes")), Numeric("x", 0, 1))
)


def federation(budget: Budget = BUDGET) -> Federation:
    return federate(tables(5), SCHEMA, budget, trust=TRUSTS["trusted"], seed=0)


# ---------------------------------------------------------------------------------------------------------------------
# Small groups


def test_without_noise_nothing_is_hidden():
    run = federation(budget=Budget.none())
    rows = table(500)
    run.sum(counts((SEX,), (REGION,), (SEX, REGION)), 1.0)
    assert small_groups(run, rows, 500.0, "sex") == Limitations(0.0, 0.0, 3)
    limits = small_groups(run, rows, 500.0)
    assert limits.loud + limits.quiet == []


def drawn(shares: np.ndarray, rows: int = 10_000) -> Table:
    """Return rows in which code k has the k-th share, and every tenth row of each code is sick."""
    codes = np.repeat(np.arange(40), np.rint(shares * rows).astype(int))
    sick = (np.arange(len(codes)) % 10 == 0).astype(np.uint8)
    return Table(MANY, (codes.astype(np.uint8), sick, np.zeros(len(codes), np.uint8)))


def record(run: Federation, value: float, crossing: float) -> Federation:
    tables = {(0,): value, (1,): value, (0, 1): crossing, (0, 2): crossing, (1, 2): crossing}
    return dataclasses.replace(run, terms=dataclasses.replace(run.terms, schema=MANY), noise=NoiseRecord(tables=tables))


def test_groups_below_twice_their_noise_are_named_with_most_rows_first():
    shares = np.full(40, 20 / 10_000)  # 40 rows each of 20,000: 2 standard deviations of 20 are just enough
    shares[0], shares[1], shares[2] = 0.70, 0.10, 0.001  # 14,000, 2,000 and 20 rows
    shares[3] = 1 - shares.sum() + shares[3]
    run = record(federation(), 20.0, 60.0)
    found = small_groups(run, drawn(shares), 20_000.0, "sick")
    assert (found.value, found.crossing, found.carried, found.others) == (40.0, 120.0, None, 0)
    count, crossings, *others = found.groups
    assert count == HiddenGroups("count", "code", 1, 40, 40.0, 20.0, (("c2", 20.0),))
    assert crossings.kind == "crossings"
    assert (crossings.hidden, crossings.below, crossings.rows) == (36, 120.0, 36 * 40.0)
    assert [rows for _, rows in crossings.names] == [40.0] * 3
    assert others == []  # the large codes have 200 sick rows and more
    assert found.quiet[:2] == [
        "the smallest trustworthy groups: 200 rows for a value of one column, 600 rows for a crossing of two (noise "
        "moves their counts by less than a fifth, in 19 of 20 cases)",
        "the smallest groups that stand out from the noise: 40 rows for a value of one column, 120 rows for a crossing "
        "of two",
    ]
    assert found.quiet[2] == "hidden by noise: code: the counts of 1 of 40 values (below 40 rows): c2 (20)"

    (target,) = [
        group
        for group in small_groups(record(run, 1.0, 150.0), drawn(shares), 20_000.0, "sick").groups
        if group.kind == "target"
    ]
    assert target.column == "code and sick"
    assert target.names == (("c3, yes", 254.0), ("c1, yes", 200.0))


def test_at_most_eleven_lines_and_what_is_left_out_is_counted():
    schema = Schema(tuple(Categorical(f"c{at}", tuple(range(30))) for at in range(12)))
    rng = np.random.default_rng(1)
    rows = Table(schema, tuple(np.minimum(rng.geometric(0.3, 5000) - 1, 29).astype(np.uint8) for _ in range(12)))
    run = federation()
    run = dataclasses.replace(
        run,
        terms=dataclasses.replace(run.terms, schema=schema),
        noise=NoiseRecord(
            tables={(at,): 20.0 for at in range(12)} | {(a, b): 90.0 for a in range(12) for b in range(a + 1, 12)}
        ),
    )
    found = small_groups(run, rows, 5000.0, "c0")
    assert [group.kind for group in found.groups] == ["count"] * 3 + ["crossings"] * 3 + ["target"] * 2
    assert len(found.loud + found.quiet) == 11
    assert found.others == 12 + 12 + 11 - 8
    assert found.quiet[-1] == "and 27 more columns or pairs"


def test_the_groups_of_a_run_are_below_the_noise_and_large_ones_are_not_listed():
    """A run of the default method: each group that is listed is below twice the noise of its own counts in real rows,
    but for what noise and model do to the estimates (5 standard deviations)."""
    rng = np.random.default_rng(2)
    code = np.minimum(rng.geometric(0.2, 12_000) - 1, 39).astype(np.uint8)
    sick = (rng.random(12_000) < np.where(code < 3, 0.5, 0.1)).astype(np.uint8)
    rows = encode(MANY, decode(MANY, [code, sick, np.zeros(12_000, np.uint8)], rng))
    run = federate(
        split(rows, 5, parse_partition("iid", MANY), rng), MANY, Budget(0.3, 1e-6), trust=SecureSum(), seed=3
    )
    synthesizer = Auto(target=MANY.names[1]).fit(run)
    found = small_groups(run, synthesizer.sample_table(12_000, rng), synthesizer.model.total, "sick")
    listed = {group.column: group for group in found.groups if group.kind == "count"}
    real = np.sort(np.bincount(code, minlength=40))
    noise = run.noise.tables[(0,)]
    assert np.sum(real < noise) <= listed["code"].hidden <= np.sum(real < 7 * noise)
    assert listed["code"].below == 2 * noise
    assert "sick" not in listed


# ---------------------------------------------------------------------------------------------------------------------
# Lost columns

WIDE = Schema(
    (
        Numeric("alone", 0, 1e9),
        Numeric("coarse", 0, 1e9, decimals=2),
        Numeric("declared", 0, 1e9, edges=(0.0, 10.0, 1e9)),
        Numeric("zeros", 0, 9, integer=True),
        Numeric("spread", 0, 1),
        Numeric("gone", 0, 1, missing=True),
        Datetime("day", "2020-01-01", "2024-01-01", unit="D"),
        Categorical("flag", ("no", "yes", "n/k")),
        Boolean("given"),
        Categorical("only", ("one",)),
    )
)


def drawn_wide(rows: int = 1000) -> Table:
    rng = np.random.default_rng(0)
    some = np.arange(rows)
    values: list[Any] = [
        np.full(rows, 20_000.0),
        np.where(some % 10 < 6, rng.uniform(0, 3e7, rows).round(2), rng.uniform(0, 1e9, rows).round(2)),
        np.where(some % 10 < 9, 5.0, 1e8),
        np.where(some % 10 < 9, 0.0, 5.0),
        rng.random(rows),
        np.full(rows, np.nan),
        np.where(some % 10 < 7, 18_300.0, 19_000.0) + some % 3,
        np.zeros(rows, np.int64),
        some % 2,
        np.zeros(rows, np.int64),
    ]
    return Table.of(WIDE, values)


def test_a_column_of_one_value_and_a_cell_with_most_rows_are_lost():
    found = {one.column: one for one in lost_columns(own_bins(WIDE), drawn_wide())}
    assert list(found) == ["alone", "coarse", "gone", "day", "flag"]
    assert found["alone"] == LostColumn("one value", "alone", "20,000", 1.0, "0 to 1,000,000,000")
    assert found["coarse"].kind == "wide cell"
    assert found["coarse"].values == "0 to 31,250,000"
    assert 0.6 <= found["coarse"].share < 0.65
    assert found["gone"] == LostColumn("one value", "gone", "missing", 1.0, "0 to 1")
    assert (found["day"].kind, found["day"].bounds) == ("wide cell", "2020-01-01 to 2024-01-01")
    assert found["flag"] == LostColumn("one value", "flag", "no", 1.0)
    assert "narrower ones, agree on these" in found["alone"].advice
    assert "Take a larger epsilon or more rows" in found["flag"].advice
    assert lost_columns(own_bins(WIDE), drawn_wide(19)) == ()


def test_a_column_of_which_noise_hides_values_is_lost_in_part():
    """Its share is that of the drawn rows next to zero, so that card and table agree."""
    schema = Schema((Numeric("amount", 0, 1000), Numeric("other", 0, 1000)))
    values = np.where(np.arange(200) < 7, 1e-11, 0.0)
    axes = tuple(AdaptiveBins.of(column) for column in schema.stored)
    drawn = Table.of(schema, [values, np.linspace(0, 1000, 200)])
    (lost,) = lost_columns(axes, drawn, {"amount": 0.02})
    assert lost == LostColumn("hidden values", "amount", "", 0.035)
    assert "Noise hides which values about 3.5 % of the rows have" in lost.says
    assert "The other values can be used" in lost.advice
    assert Limitations(lost=(lost,)).alarm == "noise hides some values of: amount: about.md says what to do"
    assert Limitations(lost=(lost,)).loud[0].startswith("HIDDEN: amount: ")
    assert lost_columns(axes, drawn) == ()


def test_values_that_a_run_did_not_see_are_in_its_card():
    run = federate([patients(500, 0), patients(500, 1)], GENEROUS, BUDGET, trust=TRUSTS["trusted"])
    made = OneShot().fit(run)
    assert isinstance(made.axes[0], AdaptiveBins)
    hidden = dataclasses.replace(made, axes=(dataclasses.replace(made.axes[0], unplaced=40.0), *made.axes[1:]))
    limitations = with_limitations(hidden, run).limitations
    assert limitations is not None
    assert [(one.kind, one.column) for one in limitations.lost] == [("hidden values", "amount")]


def test_a_column_stored_as_a_difference_is_lost_under_what_is_stored():
    schema = Schema(
        (
            Datetime("admitted", "2020-01-01", "2021-01-01", unit="D"),
            Datetime(
                "discharged",
                "2020-01-01",
                "2021-12-31",
                unit="D",
                stored=Stored(difference=("discharged", "admitted"), unit="day", lower=0, upper=300),
            ),
        )
    )
    days = np.arange(400.0) % 365 + 18_262
    table = Table.of(schema, [days, np.zeros(400)])
    (lost,) = lost_columns(own_bins(schema), table)
    assert (lost.column, lost.values) == ("discharged - admitted", "0")


# ---------------------------------------------------------------------------------------------------------------------
# The card travels with the model

GENEROUS = Schema((Numeric("amount", 0, 1e9), Categorical("sex", ("f", "m")), Numeric("age", 0, 100, bins=10)))


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"amount": rng.lognormal(3, 1, rows), "sex": rng.choice(["f", "m"], rows), "age": rng.uniform(0, 100, rows)}
    )


@pytest.fixture(scope="module")
def fitted() -> Synthesizer:
    train = {"north": patients(2000, 0), "south": patients(2000, 1)}
    return fedsynth.fit(train, GENEROUS, epsilon=1, delta=1e-6, method=OneShot(bins_share=0))


def test_print_says_what_is_lost_proved_and_hidden_and_so_does_the_file(fitted, tmp_path):
    text = str(fitted)
    for title in ("What is lost", "What is proved", "How far counts can be trusted", "Which relations of columns"):
        assert title in text
    assert text.index("What is lost") < text.index("What is proved")
    flat = " ".join(text.split())
    assert re.search(r"- amount: (9\d|100) % of the synthetic values are spread evenly from 0 to 31,250,000", flat)
    assert "is right in more than 73.2 % with it" in flat  # e / (e + 1) is 73.106 %
    assert "the smallest trustworthy groups" in flat.lower()
    assert "of 3 pairs of columns" in flat or "all 3 pairs of columns" in flat
    assert max(map(len, text.splitlines())) <= 80
    assert "<strong>amount</strong>: " in fitted._repr_html_()
    fitted.save(tmp_path / "m.fedsynth")
    again = load(tmp_path / "m.fedsynth")
    assert again.card == fitted.card
    assert again.limitations == fitted.limitations
    assert str(again) == text


def test_limitations_are_found_without_a_row(monkeypatch):
    run = federate([patients(500, 0), patients(500, 1)], GENEROUS, BUDGET, trust=TRUSTS["trusted"])
    made = OneShot(bins_share=0).fit(run)

    def closed(*_: object) -> None:
        raise AssertionError("a site was asked, or its rows were counted")

    monkeypatch.setattr("fedsynth.federation.site.Site.answer", closed)
    monkeypatch.setattr(Table, "tables", closed)
    found = with_limitations(made, run)
    assert found.limitations is not None
    assert [one.column for one in found.limitations.lost] == ["amount"]
    assert "What is lost" in str(found)
    assert "## What is lost" in card_markdown(found.card, 1000, "synthetic.csv")
    assert found.limitations == with_limitations(made, run).limitations  # no random draw of its own


@pytest.mark.parametrize(
    "name", [one.name for one in all_methods() if one.private and not one.trains and one.runs_under("trusted")]
)
def test_every_method_has_a_card(name):
    made = fedsynth.fit(tables(3, 200), SCHEMA, epsilon=1, delta=1e-6, method=name, trust="trusted")
    card = made.card
    assert card.method == name
    assert card.held is not None
    assert len(card.pairs) == card.held <= 3
    assert card.limitations is not None
    assert made.statement is not None
    assert card.guarantee == (made.statement.epsilon, 1e-6)
    for text in (str(made), made._repr_html_(), card_markdown(card, 9, "synthetic.csv")):
        assert "pairs of columns" in text


def test_a_network_says_that_it_does_not_know_its_relations():
    pytest.importorskip("torch")
    made = fedsynth.fit(
        tables(2, 100), SCHEMA, epsilon=1, delta=1e-6, method="fedvae", options={"steps": 2, "width": 8}
    )
    assert made.card.held is None
    assert "does not say which pairs of columns it relates" in " ".join(str(made).split())


def test_models_hold_the_pairs_that_their_tables_have():
    chain = fedsynth.fit(tables(3, 300), SCHEMA, epsilon=5, delta=1e-6, method="mst", trust="trusted")
    assert {frozenset(pair) for pair in chain.card.pairs} == {
        frozenset(SCHEMA.names[at] for at in clique) for clique in chain.info["cliques"]
    }
    everything = fedsynth.fit(tables(3, 300), SCHEMA, epsilon=5, delta=1e-6, method="tda")
    assert everything.card.held == 3
    network = fedsynth.fit(tables(3, 300), SCHEMA, epsilon=5, delta=1e-6, method="fedchowliu")
    assert isinstance(network.model, BayesianNetwork)
    held = network.model.related
    assert held is not None
    parents = network.model.structure.parents
    assert {(a, b) for a, b in np.argwhere(np.triu(network.model.related)).tolist()} == {
        (min(at, one), max(at, one)) for at, own in enumerate(parents) for one in own
    }


def test_of_a_run_that_is_not_private_or_seeded_nothing_is_proved():
    bare = fedsynth.fit(tables(2, 100), SCHEMA, epsilon=np.inf, delta=0, method="oneshot")
    assert (bare.card.certainty, bare.card.guarantee) == (1.0, None)
    assert "NOT PRIVATE" in str(bare)
    assert "Nobody who guesses" not in str(bare)
    seeded = fedsynth.fit(tables(2, 100), SCHEMA, epsilon=1, delta=1e-6, method="oneshot", seed=1)
    assert seeded.card.certainty == 1.0
    assert "Nobody who guesses" not in str(seeded)


def test_a_run_writes_about_md_from_its_model_alone(tmp_path: Path):
    patients(3000, 4).to_csv(tmp_path / "secret-name.csv", index=False)
    GENEROUS.save(tmp_path / "schema.toml")
    job = Job(
        "oneshot", 1.0, 1e-6, data=str(tmp_path / "secret-name.csv"), schema=str(tmp_path / "schema.toml"), sites=2,
        rows=1234, options={"bins_share": 0},
    )  # fmt: skip
    done = run_simulated(job, tmp_path / "run")
    text = (tmp_path / "run" / "about.md").read_text(encoding="utf-8")
    assert text == card_markdown(load(tmp_path / "run" / "model.fedsynth").card, 1234, "synthetic.csv")
    assert text.startswith("# About this synthetic table\n\nsynthetic.csv has 1,234 synthetic rows of 3 columns")
    assert text.index("## What is lost") < text.index("## What is proved")
    assert "secret-name" not in text
    assert done.warnings == ("noise took most of what these columns held: amount: about.md says what to do",)


# ---------------------------------------------------------------------------------------------------------------------
# Names and files of others

ESCAPES = "a\x1b[2Jb\u202e"
MARKUP = "<img src=x onerror=alert(1)> **_x_** [y](http://z) `code` | &amp;"


def test_names_of_others_cannot_command_a_terminal_or_a_page():
    groups = (HiddenGroups("count", ESCAPES, 3, 9, 40.0, 50.0, ((MARKUP, 9.0),)),)
    limits = Limitations(
        40.0,
        60.0,
        1,
        ("a\x07warning",),
        (ESCAPES,),
        groups,
        2,
        (LostColumn("one value", MARKUP, ESCAPES, 1.0, "0 to\r1"),),
    )
    plain = fedsynth.fit(tables(2, 100), SCHEMA, epsilon=1, delta=1e-6, method="oneshot")
    made = dataclasses.replace(plain, limitations=limits, info={"method": ESCAPES})
    for text in (repr(made), str(made), card_html(made.card), card_markdown(made.card, 9, ESCAPES), *limits.loud):
        assert all(one.isprintable() or one == "\n" for one in text)
    html, markdown = card_html(made.card), card_markdown(made.card, 9, "synthetic.csv")
    assert "<img" not in html
    assert "<img" not in markdown.replace("\\<img", "")
    for sign in ("**_x_**", "[y]", "`code`"):
        assert sign not in markdown


def hostile(plain: Synthesizer, limits: object, path: Path) -> Path:
    plain.save(path)
    head, arrays = unpack(path.read_bytes())
    path.write_bytes(pack({**head, "limitations": limits}, arrays))
    return path


@pytest.mark.parametrize(
    "limits",
    [
        7,
        {"value": -1},
        {"value": "many"},
        {"unknown": 1},
        {"weakest": ["x"] * 9},
        {"warnings": ["x" * 2001]},
        {"groups": [{"kind": "count", "column": "a", "hidden": -1, "of": 1, "below": 1, "rows": 1, "names": []}]},
        {"lost": [{"kind": "stolen", "column": "a", "values": "1", "share": 1}]},
        {"lost": [{"kind": "one value", "column": "a", "values": "1", "share": 2}]},
        {"lost": [{"kind": "one value", "column": "a", "values": "1", "share": 1}] * 5000},
    ],
)
def test_limitations_that_no_run_writes_are_refused(limits, tmp_path):
    plain = fedsynth.fit(tables(2, 100), SCHEMA, epsilon=1, delta=1e-6, method="oneshot")
    with pytest.raises(FedsynthError, match="not a complete model"):
        load(hostile(plain, limits, tmp_path / "m"))


def test_limitations_survive_json(fitted):
    limits = fitted.limitations
    assert msgspec.json.decode(msgspec.json.encode(limits), type=Limitations) == limits
