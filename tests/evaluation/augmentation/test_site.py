"""Whether synthetic rows help one site's classifier: tables where the answer is known."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tests.command import invoke

from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.evaluation.augmentation.site import Augmentation, augment
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema

SCHEMA = Schema((Numeric("x", -4, 4), Numeric("z", -4, 4), Categorical("y", ("a", "b", "c"))))


def frame(rows: int, seed: int, classes: tuple[int, ...] = (0, 1, 2), informative: bool = True) -> pd.DataFrame:
    """Return rows whose class shows in x and z together, or, if not ``informative``, in neither."""
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, rows)
    x, z = rng.normal(0, 1.2, (2, rows))
    if informative:
        x, z = x + 1.5 * (y == 1) - 1.5 * (y == 2), z + 1.5 * (y == 2)
    return pd.DataFrame(
        {"x": np.clip(x, -4, 4).round(3), "z": np.clip(z, -4, 4).round(3), "y": np.array(list("abc"))[y]}
    )


def table(rows: int, seed: int, classes: tuple[int, ...] = (0, 1, 2), informative: bool = True) -> Table:
    return encode(SCHEMA, frame(rows, seed, classes, informative))


def test_rows_of_the_same_law_help_a_site_with_few() -> None:
    found = augment(table(60, 0), table(4000, 1), "y", holdout=table(3000, 2))
    assert found.by == "own"
    assert found.amounts == (0, 18, 36, 72, 144, 288)
    assert found.helps
    assert found.gain("holdout")[0] > 0.03
    assert f"{found.amounts[found.best] / 36:.2g} times as many" in str(found)


def test_rows_without_information_are_no_gain() -> None:
    found = augment(table(600, 0), table(4000, 1, informative=False), "y")
    assert not found.helps
    assert "train on the site's rows alone" in str(found)


def test_a_site_with_one_class_is_judged_by_the_rows_of_all() -> None:
    found = augment(table(200, 0, classes=(0,)), table(3000, 1), "y")
    assert found.by == "all"
    assert list(found.tested) == ["all"]
    assert found.helps
    assert np.array(found.tested["all"])[:, 0].max() == 0.5  # one class in training: no better than guessing
    with pytest.raises(InvalidParameter, match="--judge all"):
        augment(table(200, 0, classes=(0,)), table(3000, 1), "y", by="own")


def test_which_rows_judge_decides() -> None:
    """A site with another law than all sites: their rows help elsewhere and not at home."""
    other = table(2000, 0)
    relabelled = replace(other, codes=(*other.codes[:2], 2 - other.codes[2]))
    at_home, elsewhere = (augment(relabelled, table(4000, 1), "y", by=by) for by in ("own", "all"))
    assert not at_home.helps
    assert elsewhere.helps


def test_the_gain_is_that_of_the_amounts_chosen_and_its_error_is_corrected_for_overlap() -> None:
    tested = {"own": ((0.5, 0.6), (0.5, 0.4), (0.5, 0.9)), "all": ((0.5, 0.7),) * 3}
    found = Augmentation("y", "ROC AUC", 10, (0, 5), tested, "own", (1, 0, 1), 1)
    gain, error = found.gain("own")
    assert gain == pytest.approx((0.1 + 0 + 0.4) / 3)
    assert error == pytest.approx(np.std([0.1, 0, 0.4], ddof=1) * math.sqrt(1 / 3 + 1 / 3))


def test_a_number_is_predicted_by_regression() -> None:
    assert augment(table(80, 0), table(2000, 1), "x", repeats=2).score == "R2"


def test_rows_of_a_person_stay_together() -> None:
    """Persons whose rows are copies of one: a learner that has seen a copy would be perfect."""
    rng = np.random.default_rng(0)
    once = frame(40, 3, informative=False)
    copies = once.loc[np.repeat(once.index, 10)]
    encoded = encode(SCHEMA, copies)
    known = replace(encoded, persons=np.repeat(rng.permutation(40), 10).astype(np.uint64))
    leaky = augment(encoded, table(500, 1, informative=False), "y").tested["own"]
    honest = augment(known, table(500, 1, informative=False), "y").tested["own"]
    assert np.mean(leaky, axis=0)[0] > 0.95
    assert np.mean(honest, axis=0)[0] < 0.7


def test_tables_that_do_not_do_are_refused() -> None:
    with pytest.raises(SchemaError, match="different schemas"):
        augment(table(20, 0), encode(Schema((Categorical("y", ("a", "b", "c")),)), frame(9, 0)[["y"]]), "y")
    with pytest.raises(Unsupported, match="too few"):
        augment(table(2, 0), table(20, 1), "y")
    with pytest.raises(InvalidParameter, match="repeats"):
        augment(table(20, 0), table(20, 1), "y", repeats=0)


def test_command(tmp_path) -> None:
    SCHEMA.save(tmp_path / "agreed.toml")
    own, synthetic = frame(60, 0), frame(4000, 1)
    own.assign(note="private").to_csv(tmp_path / "mine.csv", index=False)
    synthetic.to_csv(tmp_path / "synthetic.csv", index=False)
    frame(1000, 2).to_csv(tmp_path / "later.csv", index=False)
    words = ["augment", tmp_path / "mine.csv", tmp_path / "synthetic.csv", "--schema", tmp_path / "agreed.toml"]
    words += ["--target", "y", "--holdout", tmp_path / "later.csv"]
    facts = json.loads(invoke([*words, "--out", tmp_path / "aug", "--json"]).output)
    assert facts["augmentation"]["helps"]
    made = pd.read_csv(tmp_path / "aug" / "augmented.csv", dtype=str)
    many = round(60 * facts["augmentation"]["best"] / facts["augmentation"]["own_rows"])
    assert made.equals(pd.concat([own, synthetic.head(many)], ignore_index=True).astype(str))
    assert stat.S_IMODE((tmp_path / "aug" / "augmented.csv").stat().st_mode) == 0o600
    assert (tmp_path / "aug" / "augmentation.html").read_text().count("<svg") == 1
    told = invoke([*words, "--out", tmp_path / "again", "--judge", "all"])
    assert told.exit_code == 0
    assert "Tested on rows that were in no training" in told.output
    assert "not private" in told.output
    refused = invoke([*words, "--out", tmp_path / "aug"])
    assert refused.exit_code == 8
    assert "exists" in refused.output
