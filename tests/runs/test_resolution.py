"""What stands out from a run's noise: the recorded noise against released noise, columns, and warnings."""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.world import AGE, BUDGET, REGION, SCHEMA, SEX, TRUSTS, Faulty, counts, start, table, tables

from fedsynth.deep.fedvae import FedVAE
from fedsynth.encoding import decode
from fedsynth.federation.federation import Federation
from fedsynth.federation.noise_record import DROWNED, UNTRAINED, NoiseRecord
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.auto import Auto
from fedsynth.methods.mst import MST
from fedsynth.methods.oneshot import OneShot
from fedsynth.models.synthesizer import load
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.runs.dry_run import dealt, dry_run, even_rows, steep_rows
from fedsynth.runs.job import Job
from fedsynth.runs.resolution import columns_carried, resolution, weakest_columns
from fedsynth.runs.run import run_simulated
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.site import SecureSum
from fedsynth.terms import Terms


def federation(trust: str = "trusted", sites: int = 5, budget: Budget = BUDGET, seed: int = 0) -> Federation:
    return federate(tables(sites), SCHEMA, budget, trust=TRUSTS[trust], seed=seed)


# ---------------------------------------------------------------------------------------------------------------------
# The record


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_recorded_noise_is_that_of_the_releases(trust):
    """Of a table, and of its sums: 400 releases of one cell have a deviation within 4 / sqrt(800) of the true one."""
    exact = sum(counted for site in tables(5) for counted in site.tables(counts((AGE,)).axes, [(SEX, REGION, AGE)]))
    errors: dict[tuple[int, ...], list[float]] = {(SEX,): [], (SEX, AGE): [], (SEX, REGION, AGE): []}
    for seed in range(400 if trust != "secure" else 60):
        run = federation(trust, seed=seed)
        (found,) = run.sum(counts((SEX, REGION, AGE)), 0.7).tables
        for kept in errors:
            over = tuple(at for at in range(3) if at not in kept)
            errors[kept].append(float((found - exact).sum(axis=over).ravel()[0]))
    for kept in ((SEX,), (SEX, AGE)):
        measured = float(np.std(errors[kept], mean=0.0))
        assert run.noise.tables[kept] == pytest.approx(measured, rel=4 / math.sqrt(2 * len(errors[kept])) + 0.02)
    assert (SEX, REGION, AGE) not in run.noise.tables
    assert run.noise.summed


def test_the_smallest_noise_of_each_table_is_kept_and_is_that_of_all_sites():
    run = federation(sites=4)
    run.sum(counts((SEX,), (SEX, AGE), weights=(1, 4)), 0.2)
    kept = dict(run.noise.tables)
    assert kept[SEX, AGE] * 4 == pytest.approx(run.std(counts((SEX,), (SEX, AGE), weights=(1, 4)), 0.2))
    run.sum(counts((AGE, SEX)), 0.001)
    assert run.noise.tables == kept  # noisier
    cohort = dataclasses.replace(run, sites=run.sites[:1])
    cohort.sum(counts((REGION,)), 0.5)
    assert run.noise.tables[(REGION,)] == pytest.approx(4 * run.std(counts((REGION,)), 0.5, 1))
    run.each(counts((AGE,)), 0.2)
    assert run.noise.tables[(AGE,)] <= 2 * run.std(counts((AGE,)), 0.2) * 1.001


def test_what_a_vault_opens_is_recorded():
    run = federation()
    vault = run.deposit(counts((SEX, REGION)), 0.5)
    assert (run.noise.tables, run.noise.chosen) == ({}, True)
    _, (std,) = vault.open(counts((SEX, REGION)), 0.3)
    assert run.noise.tables[SEX, REGION] == std
    assert resolution(run, 100).carried is None  # its selections do not pay for all pairs


# ---------------------------------------------------------------------------------------------------------------------
# Columns


def wide(epsilon: float, sites: int = 10, trust: str = "secure", *, public_sizes: bool = False) -> Federation:
    parts = tables(sites, 5)
    found = federate(parts, SCHEMA, Budget(epsilon, 1e-6), trust=TRUSTS[trust], seed=0, public_sizes=public_sizes)
    return found


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("columns", [20, 53, 200])
def test_a_hundred_rows_for_each_column_and_epsilon_carry_the_columns(epsilon, columns):
    """The rule that was measured: rows x epsilon / columns of about 100 under secure sums over ten sites."""
    run = wide(epsilon)
    for rows, all_of_them in ((130 * columns / epsilon, True), (80 * columns / epsilon, False)):
        found = columns_carried(run, rows, columns)
        assert (found.carried == columns) is all_of_them
        assert bool(found.warning) is not all_of_them
    assert f"only among {found.carried} of them" in found.warning
    assert 0.6 * columns < found.carried < columns


@given(st.integers(1, 60), st.floats(10, 1e5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_so_many_columns_and_no_more_stand_out(columns, rows, public):
    run = wide(1.0, 3, "trusted", public_sizes=public)
    carried = columns_carried(run, rows, columns).carried

    def clear(many: int) -> bool:
        noise = run.std(Counts.of(1, [(0,)] * max(1, many * (many - 1) // 2)), 0.1) * (math.sqrt(2) if public else 1)
        return bool(0.5 * rows >= 4 * noise)

    assert 1 <= carried <= columns
    assert carried < 2 or clear(carried)
    assert carried == columns or not clear(carried + 1)


def test_what_the_warning_asks_for_is_enough():
    run = wide(1.0)
    found = columns_carried(run, 2000, 50)
    asked = found.warning.rpartition("about epsilon ")[2].split()
    epsilon, rows = float(asked[0]), float(asked[2].replace(",", ""))
    assert columns_carried(run, rows * 1.05, 50).carried == 50
    assert columns_carried(wide(epsilon * 1.1), 2000, 50).carried == 50


def test_a_balanced_pair_stands_out_by_four_deviations_at_the_limit():
    """A table of rows at the limit: the products of halves add up to 0.5 x rows, and the noise is an eighth of it."""
    run = wide(1.0)
    rows = next(rows for rows in range(100, 100_000, 50) if columns_carried(run, rows, 30).carried == 30)
    noise = run.std(Counts.of(1, [(0,)] * (30 * 29 // 2)), 0.1)
    assert 0.5 * rows / noise == pytest.approx(4.0, rel=0.02)


def test_the_weakest_columns_are_those_without_a_relation():
    rng = np.random.default_rng(0)
    rows = 4000
    first = rng.integers(0, 4, rows)
    follows = np.where(rng.random(rows) < 0.8, first, rng.integers(0, 4, rows))
    folded = np.isin(first, (0, 3)).astype(np.int64)  # not monotone in the order of codes
    schema = Schema(
        tuple(Categorical(name, tuple("abcd")[:size]) for name, size in (("a", 4), ("b", 4), ("alone", 3), ("f", 2)))
    )
    codes = (first, follows, rng.integers(0, 3, rows), folded)
    found = weakest_columns(Table(schema, tuple(code.astype(np.uint8) for code in codes)), 4)
    assert found[0] == "alone"
    assert set(found) == {"a", "b", "alone", "f"}
    constant = Table(schema, (np.zeros(rows, np.uint8), *(code.astype(np.uint8) for code in codes[1:])))
    assert weakest_columns(constant, 1) == ["a"]


# ---------------------------------------------------------------------------------------------------------------------
# Warnings


def test_tables_under_noise_are_told_of_once_and_before_a_site_answers(caplog):
    told_before: dict[int, int] = {}

    def watched(message, ask):
        told_before.setdefault(link.exchanges, len(caplog.records))
        return ask(message)

    link = Faulty(watched)
    run = start(link, tables(3), TrustedServer(), Budget(0.02, 1e-6), seed=0)
    run.noise.rows = 111.0
    with caplog.at_level(logging.WARNING):
        run.sum(counts((SEX,)), 0.1)
        run.sum(counts((SEX, AGE)), 0.1)
        run.sum(counts((SEX, REGION)), 0.1)
    assert told_before == {1: 0, 2: 1, 3: 1}
    (told,) = (one.getMessage() for one in caplog.records)
    assert told.startswith("noise drowns these tables")
    assert run.noise.tables[SEX, AGE] > DROWNED * 111


def test_what_the_warnings_ask_for_is_enough():
    record = NoiseRecord(tables={(0, 1): 400.0}, training=400.0)
    found = record.drowned(Budget(1.0, 1e-6), 1000.0)
    assert set(found) == {"tables", "training"}
    assert "4,000 rows" in found["tables"]
    assert "5,000 rows" in found["training"]
    assert record.drowned(Budget(1.0, 1e-6), 5001.0) == {}
    assert set(record.times(0.1).drowned(Budget(1.0, 1e-6), 100.0)) == set(found)


@pytest.mark.parametrize(("method", "trust"), [(OneShot(), "secure"), (Auto(), "trusted"), (MST(), "trusted")])
def test_a_dry_run_has_the_noise_of_the_run(method, trust):
    """Whatever its rows; only the number of tables, among which the budget is divided, depends on them."""
    found = []
    for make in (steep_rows, even_rows):
        made = make(SCHEMA, 3000, np.random.default_rng(0))
        tried, _ = dry_run(method, Terms(SCHEMA, BUDGET, trust), dealt(made, 3, 1), seed=1)
        found.append(resolution(tried, 50))
    run = federate(tables(3, 1000), SCHEMA, BUDGET, trust=TRUSTS[trust], seed=2)
    method.fit(run)
    real = resolution(run, 50)
    for one in found:
        assert one.value == pytest.approx(real.value, rel=0.5)
        assert one.crossing == pytest.approx(real.crossing, rel=0.7)
        assert (one.carried, len(one.warnings) > 0) == (real.carried, len(real.warnings) > 0)


def test_training_under_noise_is_told_of_before_anything_is_asked(caplog, tmp_path: Path):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    frame = decode(SCHEMA, list(table(400).codes), rng)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    SCHEMA.save(tmp_path / "schema.toml")
    job = Job(
        "fedvae", 1.0, 1e-6, data=str(tmp_path / "rows.csv"), schema=str(tmp_path / "schema.toml"), sites=2, seed=1,
        options={"steps": 3, "width": 8},
    )  # fmt: skip
    counted = []

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "fedsynth.runs.run"]

    with caplog.at_level(logging.WARNING):
        done = run_simulated(job, tmp_path / "run", progress=lambda *_: counted.append(len(warnings())))
    assert [one[:28] for one in warnings()] == ["noise drowns this training: "]
    assert counted[0] == 1
    limits = load(done.folder / "model.fedsynth").limitations
    assert limits == done.synthesizer.limitations
    assert limits is not None
    assert limits.warnings[0].startswith("noise drowns this training")


def test_the_recorded_noise_of_training_is_that_of_the_mean_gradient(monkeypatch):
    """Sites that answer zeros: what is left of the mean of all steps is noise, of which the survey's share is not."""
    pytest.importorskip("torch")
    from fedsynth.deep import training

    slopes = []
    usual = training.mean_slope

    def noted(*arguments):
        slopes.append(usual(*arguments))
        return slopes[-1]

    monkeypatch.setattr(training, "mean_slope", noted)
    method = FedVAE(steps=40, width=8, survey_share=0.01)
    run = federate(
        [table(200), table(200, 1)], SCHEMA, Budget(2.0, 1e-6), trust=SecureSum(), seed=0, transport=_untrained
    )
    run = dataclasses.replace(run, noise=NoiseRecord(tell=lambda sentence: None))
    method.fit(run)
    assert run.noise.rows is not None
    norm = float(np.linalg.norm(np.mean(slopes, axis=0)))
    # Of d = 1,000 normal numbers, the norm deviates by 1 / sqrt(2 d); the sensitivity allows for rounding (1 / 32).
    assert norm / method.clip == pytest.approx(run.noise.training / run.noise.rows, rel=0.1)
    assert norm > UNTRAINED


def _untrained(sites):
    from fedsynth.federation.transport import InProcess

    return InProcess([dataclasses.replace(site, trains=False) for site in sites])
