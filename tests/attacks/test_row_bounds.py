"""B5: no number of rows makes a site fail whose tables are dealt to three servers, however many sites there are."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.attacks.world import DIAGNOSIS, SCHEMA, SEX, ask, counts, question, site, table

from fedsynth.federation.events import DealtShares
from fedsynth.federation.query import MOST_ROWS, Counts
from fedsynth.keys import Keys
from fedsynth.privacy.release import Deposit
from fedsynth.schema import Schema
from fedsynth.schema.bins import MOST_CELLS
from fedsynth.servers.questions import MOST_RECORDS, ShareLayout, largest_count
from fedsynth.servers.shares import SERVERS, added, expand, numbers_of, open_share
from fedsynth.servers.trust import ThreeServers

KEYS = [Keys(bytes([number]) * 32) for number in range(SERVERS)]
CHEAP = Deposit(1e-6)


def servers(sites: int) -> ThreeServers:
    """Return the trust, with a roster of so many sites, of which one is the tests' site."""
    roster = {"north": b"n" * 32} | {f"other-{number}": number.to_bytes(32) for number in range(sites - 1)}
    return ThreeServers(tuple(keys.public for keys in KEYS), roster)


@pytest.mark.parametrize("rows", [1024, 1025])
def test_b05_neighbours_beside_the_limit_that_many_sites_made_get_one_code(rows):
    """2^14 sites lowered a limit to 1,024 rows: a site with one row more answered ``failed``, at any price."""
    of = site(table(rows), trust=servers(2**14))
    assert ask(of, question(verb="deposit", trust="three-servers", release=CHEAP)).code == "answered"


class Crowd:
    """Rows of a table that no machine of the tests holds: each cell of a count has any number of them."""

    holds_rows = False

    def __init__(self, cell: int) -> None:
        self.cell = self.rows_read = cell
        self.schema: Schema = SCHEMA

    def __len__(self) -> int:
        return self.cell

    def require(self, run: str) -> None:
        """Do nothing: the rows are there."""

    @contextmanager
    def opened(self, run: str) -> Any:
        yield self

    def tables(self, axes: Any, tables: Any) -> list[np.ndarray]:
        """Return a table of equal cells for each of ``tables``."""
        query = Counts(axes, tables)
        return [np.full(shape, self.cell, dtype=np.int64) for shape in query.shapes(SCHEMA)]


def dealt(cell: int, trust: ThreeServers, query: Counts) -> list[int]:
    """Return what the three shares of a site with so many rows in each cell add up to."""
    of = site(trust=trust)
    object.__setattr__(of, "rows", Crowd(cell))
    asked = question(query, verb="deposit", trust="three-servers", release=CHEAP)
    reply = ask(of, asked)
    assert reply.code == "answered"
    answer = reply.answer
    assert isinstance(answer, DealtShares)
    cells = query.cells(SCHEMA)
    context = (asked.question, "north", trust.terms)
    both = KEYS[0].unseal(answer.keys[0].tobytes(), "0", *context)
    first, second = both[:32], both[32:]
    third = KEYS[2].unseal(answer.keys[2].tobytes(), "2", *context)[:32]
    last = open_share(third, answer.body.tobytes(), cells, *context)
    return numbers_of(added(added(expand(first, cells), expand(second, cells)), last))


@pytest.mark.parametrize("sites", [1, 5, 2**14])
def test_b05_any_number_of_rows_is_dealt_and_larger_counts_as_the_cap(sites):
    """Beyond every limit of rows there is no failure: counts are dealt as they are up to the cap of their table."""
    trust, query = servers(sites), counts((SEX,), (SEX, DIAGNOSIS))
    caps = [largest_count(math.prod(shape), sites) for shape in query.shapes(SCHEMA)]
    cells = [math.prod(shape) for shape in query.shapes(SCHEMA)]
    for count in (0, 2**24, MOST_ROWS, MOST_ROWS + 1, caps[1] - 1, caps[1], caps[1] + 1, caps[0] + 1, 2**62):
        wanted = [min(count, cap) for cap, size in zip(caps, cells, strict=True) for _ in range(size)]
        assert dealt(count, trust, query) == wanted
    for cap, size in zip(caps, cells, strict=True):
        assert sites * size * cap <= MOST_RECORDS < sites * size * (cap + 1)


def test_b05_a_capped_count_moves_by_no_more_than_the_record_that_moves_it():
    """For every pair of neighbours at the cap and on either side: one cell moves, by 1 or 0, and so do its sums."""
    cap = largest_count(2**24, 2**14)
    counts_of = np.array([0, 1, 2**17, cap - 2, cap - 1, cap, cap + 1, 2**40, 2**62])
    moved = np.minimum(counts_of + 1, cap) - np.minimum(counts_of, cap)
    assert moved.tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0]


def test_b05_no_realistic_count_is_capped_and_no_public_extreme_leaves_nothing():
    assert largest_count(MOST_CELLS, 2**14) == 2**18
    assert largest_count(2**20, 100) > 2**29
    assert largest_count(1, 0) == MOST_RECORDS


def test_b05_sums_of_squares_of_the_largest_tables_are_below_what_a_draw_can_lift():
    """Exact integers at the ends: all counts of all sites in one cell, and the largest expected counts."""
    expected = 2**32 * (2**31 - 1) ** 2
    assert MOST_RECORDS**2 + expected < 2**113 < 2**126


@pytest.mark.parametrize("trust", ["trusted", "local"])
def test_b05_counts_have_no_limit_of_rows_under_other_trusts_either(trust):
    """The limit of 2^28 rows belongs to sums whose integers might not fit: counts fit for 2^56 rows."""
    from fedsynth.federation.policy_file import trust_named

    of = site(trust=trust_named(trust, {}))
    codes = set()
    for rows in (MOST_ROWS, MOST_ROWS + 1):
        object.__setattr__(of, "rows", Crowd(rows))
        codes.add(ask(of, question(trust=trust, step=rows - MOST_ROWS)).code)
    assert codes == {"answered"}


def test_b05_marginals_of_dealt_tables_are_summed_with_their_carries():
    """Shares are uniform in both words: a sum over an axis carries from the low words into the high ones."""
    query = counts((SEX, DIAGNOSIS))
    layout = ShareLayout(query, SCHEMA)
    vector = np.full((2, layout.cells), 2**64 - 1, dtype=np.uint64)
    found = numbers_of(layout.table(vector, (SEX,)))
    size = layout.cells // len(found)
    assert found == [2**128 - size] * len(found)
