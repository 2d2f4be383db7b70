"""What a server learns beside the answers: from failing, and from the clock."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest
from tests.attacks.world import AGE, SCHEMA, SEX, ask, ask_deployed, deployed, frame, question, site, table

from fedsynth.federation.audit import verify
from fedsynth.federation.wire import Request
from fedsynth.methods.tda_sums import mixture_sums
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.table import Table

MISFITS = [
    pytest.param({"sex": "f", "diagnosis": "a", "age": 130.0}, id="a-number-out-of-bounds"),
    pytest.param({"sex": "f", "diagnosis": "unheard-of", "age": 30.0}, id="an-unknown-category"),
    pytest.param({"sex": None, "diagnosis": "a", "age": 30.0}, id="a-missing-value"),
]


@pytest.mark.parametrize("row", MISFITS)
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a misfit raises while the rows are read: no answer, no charge, no audit line",
)
def test_a08_one_row_that_does_not_fit_is_not_seen_from_outside(tmp_path, row):
    """Rows of any content are answered for: a misfit changes neither whether a site answers nor what it charges."""
    fits = frame(20)
    seen = []
    for name, rows in (("without", fits), ("with", pd.concat([fits, pd.DataFrame([row])], ignore_index=True))):
        config = deployed(tmp_path / name, rows)
        reply = ask_deployed(config, question(cliques=[[SEX]]))
        lines = verify(config.audit).lines if config.audit.exists() else 0
        seen.append((reply.error, SiteLedger(config.ledger).spent(), lines))
    assert seen[0] == seen[1]


def seconds(rows: Table, request: Request) -> float:
    """Return the shortest time of a few answers by a site to one question, as a server measures it."""
    asked = site(rows)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        reply = ask(asked, request)
        times.append(time.perf_counter() - start)
        assert not reply.error, reply
    return min(times)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a reply is sent as soon as the rows are counted")
def test_a09_the_time_of_an_answer_does_not_tell_how_many_rows_there_are():
    """A site sends its reply at a time that depends on the question alone, however many rows it counts."""
    request = question(cliques=[[0, 1], [0, 2], [1, 2]])
    few = table(100)
    many = few.take(np.arange(1_000_000) % len(few))
    assert seconds(many, request) < 2 * seconds(few, request)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="an E step takes a time for each distinct value")
def test_a09_the_time_of_an_answer_does_not_tell_what_rows_hold():
    """A site sends its reply at a time that depends on the question alone, whatever values its rows hold."""
    ages = np.linspace(0, 100, 40_000)
    alike, apart = (
        SCHEMA.encode(pd.DataFrame({"sex": "f", "diagnosis": "a", "age": values}))
        for values in (np.full(len(ages), 50.0), ages)
    )
    coefficients = np.zeros((3, 1, 20))
    request = question(mixture_sums.name, columns=[AGE], coefficients=coefficients)
    assert seconds(apart, request) < 2 * seconds(alike, request)
