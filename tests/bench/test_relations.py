"""The benchmark of strong relations: its made tables, and which pairs it calls findable."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks import relations
from benchmarks.wide import coded, made_wide, made_wide_100

from fedsynth.bench.grid import training_and_test
from fedsynth.bench.metrics import FinishedRun
from fedsynth.bench.spec import read_spec
from fedsynth.data.draft import draft_schema
from fedsynth.encoding import encode
from fedsynth.evaluation.dependence import strong_associations
from fedsynth.plugins import named
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.ledger import Ledger
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Schema


def test_made_tables_depend_on_nothing_but_their_seed_and_hold_strong_pairs_of_every_kind():
    frame = made_wide()
    pd.testing.assert_frame_equal(frame, made_wide())
    assert (frame.shape, made_wide_100().shape) == ((7_000, 50), (20_000, 100))
    table = encode(draft_schema(frame, rare=1).schema, frame)
    assert table.left_out == 0
    names = table.schema.names
    strong = {frozenset((names[one], names[two])) for one, two in strong_associations(table)["above 0.5"]}
    assert {
        frozenset(pair)
        for pair in (("grade", "sub_grade"), ("state", "region"), ("amount", "balance"), ("grade", "interest"))
    } <= strong
    assert not any(name.startswith("filler") for pair in strong for name in pair)
    assert frame["status"].nunique() == 3


@pytest.mark.parametrize("name", ["factor-60", "factor-120", "tree-50", "tree-80", "sparse-70", "sparse-100"])
def test_coded_tables_depend_on_nothing_but_their_seed_and_have_few_rows_a_column(name):
    spec = read_spec((relations.SPEC.parent / "wide.toml").read_text(encoding="utf-8"))
    made = named(spec.datasets[name].file)
    frame = made()
    pd.testing.assert_frame_equal(frame, made())
    assert frame.shape[1] == int(name.split("-")[1])
    assert 30 < len(frame) / frame.shape[1] < 100
    table = encode(draft_schema(frame, rare=1).schema, frame)
    assert table.left_out == 0
    assert all(isinstance(column, Categorical) for column in table.schema.stored)
    assert max(table.schema.sizes) <= 16
    assert len(strong_associations(table)["above 0.3"]) > 10


def test_numbers_are_coded_by_cells_of_equal_width_between_the_bounds_of_the_whole_table():
    frame = pd.DataFrame(
        {"x": np.linspace(0, 16, 1601), "few": np.arange(1601) % 3, "one": 7, "name": ["a", "b"] * 800 + ["a"]}
    )
    found = coded(frame, 500)
    assert list(found) == ["x", "few", "name"]
    assert len(found) == 500
    pd.testing.assert_frame_equal(found, coded(frame, 500))
    whole = coded(frame, 1601).sort_values("x", ignore_index=True)["x"]
    assert whole.tolist() == np.minimum(np.arange(1601) // 100, 15).tolist()


def halved(rows: int, same: int, seed: int = 0) -> Table:
    """Return two balanced columns that agree in ``same`` rows more than they differ in, and one that is independent."""
    schema = Schema((Boolean("a"), Boolean("b"), Boolean("c")))
    half = rows // 2
    one = np.repeat([0, 1], half)
    two = one.copy()
    for start in (0, half):
        two[start : start + (rows - same) // 4] ^= 1
    return Table(schema, tuple(column.astype(np.uint8) for column in (one, two, np.tile([0, 1], half))))


def test_findable_pairs_stand_four_deviations_out():
    noise = relations._noise(3, 10, 1.0, 1e-6)
    budget = Budget(1.0, 1e-6)
    # One number for each of three pairs at a tenth of the budget: the deviation of a count in three tables, and more
    # than a trusted server's, sqrt(pairs / (2 rho)).
    assert noise > math.sqrt(3 / (2 * budget.rho / 10))
    assert relations._noise(9, 10, 1.0, 1e-6) == pytest.approx(noise * math.sqrt(36 / 3), rel=0.02)
    enough = 4 * math.ceil(4 * noise / 4) + 4
    for same, count in ((enough, 1), (enough - 8, 0)):
        table = halved(4 * (enough // 4) * 2, same)
        assert relations.covariance(relations.halvings(table), (0, 1)) == same
        assert abs(relations.covariance(relations.halvings(table), (0, 2))) < 2
        run = FinishedRun(table, table, sites=(table,) * 10, ledger=Ledger(budget))
        found = relations.findable(run)
        assert found["count, above 0.3"] == count
        assert found["above 0.3"] == 1 if count else math.isnan(found["above 0.3"])


def test_categories_without_an_order_are_halved_by_frequency():
    schema = Schema((Categorical("k", ("a", "b", "c", "d")), Categorical("o", ("x", "y", "z"), ordered=True)))
    codes = np.array([0, 1, 1, 1, 3, 3, 2, 2]), np.array([0, 0, 0, 0, 0, 1, 1, 2])
    by_order, by_frequency = relations.halvings(Table(schema, tuple(column.astype(np.uint8) for column in codes)))
    assert by_order[0].tolist() == [-1, -1, -1, -1, 1, 1, 1, 1]
    assert by_frequency[0].tolist() == [1, -1, -1, -1, 1, 1, 1, 1]  # b has 3 of 8 rows, and b with c 5
    assert by_order[1].tolist() == by_frequency[1].tolist() == [-1, -1, -1, -1, -1, 1, 1, 1]


def test_the_program_writes_a_line_a_run_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    spec = read_spec(relations.SPEC.read_text(encoding="utf-8"))
    assert training_and_test(spec, "made-wide", tmp_path)[0].schema.names == tuple(map(str, made_wide()))
    text = relations.SPEC.read_text(encoding="utf-8").replace("benchmarks.wide:made_wide_100", f"{__name__}:few")
    (tmp_path / "relations.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(relations, "SPEC", tmp_path / "relations.toml")
    out = tmp_path / "found.csv"
    given = ["relations", "--tables", "made-wide-100", "--methods", "oneshot,mst", "--data-dir", str(tmp_path)]
    for seeds, done in ((1, "cells: 0 of 2"), (2, "cells: 2 of 4")):
        monkeypatch.setattr(sys, "argv", [*given, "--seeds", str(seeds), "--out", str(out)])
        relations.main()
        assert capsys.readouterr().out.startswith(done)
    with out.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["trust"], line["seed"]) for line in lines] == [
        ("mst", "trusted", "0"),
        ("mst", "trusted", "1"),
        ("oneshot", "secure", "0"),
        ("oneshot", "secure", "1"),
    ]
    assert all(0 <= float(line["strong: above 0.5"]) <= 1 for line in lines)
    assert Path(f"{tmp_path}/found-runs/results.jsonl").exists()


def few() -> pd.DataFrame:
    return made_wide()[["grade", "sub_grade", "interest", "amount", "balance", "status"]].iloc[:1500]
