import numpy as np
import pandas as pd
import pytest
from tests.attacks.world import SEX, ask, counts, question, site, table, values

from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Schema

SCHEMA = Schema((Categorical("sex", ("f", "m")), Categorical("smokes", ("yes", "no"))))


@pytest.mark.parametrize("salt", ["random", "repeated"])
def test_two_questions_have_unrelated_noise_even_where_a_salt_repeats(salt):
    """Copies of a virtual machine may draw the same random bytes; two questions of equal terms still share no noise.

    The correlation of 200 independent numbers is beyond the bound once in 10^13 times.
    """

    def transport(made):
        site = made[0]
        if salt == "repeated":
            account = Book(entropy=lambda key: bytes(32))
            site = Site(site.name, site.rows, site.policy, account, site.secret, site.coordinator, site.rows_digest)
        return InProcess([site])

    rows = pd.DataFrame({"sex": ["f", "m"] * 10, "smokes": ["yes", "no"] * 10})  # both tables are the same
    federation = federate([rows], SCHEMA, Budget(1.0, 1e-6), trust=LocalNoise(), transport=transport)
    sexes = federation.sum(Counts.of(2, [(0,)] * 100), 0.1)
    smokers = federation.sum(Counts.of(2, [(1,)] * 100), 0.1)
    assert np.mean(sexes.values == smokers.values) < 0.2
    correlation = np.corrcoef(sexes.values, smokers.values)[0, 1]
    assert abs(correlation) < 0.5


@pytest.mark.parametrize("verb", ["sum", "each"])
def test_one_question_has_unrelated_noise_under_another_salt(verb):
    """Two accounts that know nothing of each other answer one question of one secret, about the same rows.

    Their salts alone differ, and with them the noise; equal salts give equal noise. The correlation of 200 independent
    numbers is beyond the bound once in 10^13 times.
    """
    asked = question(counts(*[(SEX,)] * 100), verb=verb)

    def noise(salt: bytes) -> np.ndarray:
        return values(ask(site(table(40), account=Book(entropy=lambda key: salt * 32)), asked))

    first, other, again = noise(b"a"), noise(b"b"), noise(b"a")
    assert np.array_equal(first, again)
    assert np.mean(first == other) < 0.2
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.5


def test_keys_of_a_run_depend_on_its_salt():
    """What a site derives for all questions of a run is another key once the run has another salt."""
    from fedsynth.federation.site import _Turn

    def keys(salt: bytes) -> tuple[bytes, bytes]:
        of, asked = site(account=Book(entropy=lambda key: salt * 32)), question()
        ask(of, asked)
        turn = _Turn(of, asked)
        turn.answer()
        return turn.run_key("purpose"), turn.key("purpose")

    assert keys(b"a") == keys(b"a")
    assert not set(keys(b"a")) & set(keys(b"b"))
