"""What a method returns: rows under the schema, and the same rows after a trip to disk."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pandas as pd
import pytest

import fedsynth
from fedsynth.encoding import decode, problems
from fedsynth.errors import FedsynthError
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.oneshot import OneShot
from fedsynth.models.synthesizer import FORMAT, Synthesizer, load
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

SCHEMA = Schema(
    (
        Categorical("zip", ("007", "100"), missing=True),
        Boolean("b"),
        Numeric("n", 0, 10, integer=True, missing=True),
        Datetime("t", "2020-01-01", "2020-02-01", unit="D"),
    )
)


@pytest.fixture(scope="module")
def fitted() -> Synthesizer:
    rng = np.random.default_rng(0)
    frames = [decode(SCHEMA, [rng.integers(0, size, 80) for size in SCHEMA.sizes], rng) for _ in range(3)]
    return OneShot().fit(federate(frames, SCHEMA, Budget(2.0, 1e-5), trust=TrustedServer(), seed=0))


def test_saved_and_loaded_it_samples_the_same_rows(fitted, tmp_path):
    fitted.save(tmp_path / "m.fedsynth")
    again = load(tmp_path / "m.fedsynth")
    pd.testing.assert_frame_equal(again.sample(500, 3), fitted.sample(500, 3))
    assert again.schema == SCHEMA
    assert again.info == fitted.info
    assert again.sample(5, 0)["n"].dtype == "Int64"
    assert problems(SCHEMA, again.sample(2000, 1)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["m.fedsynth"]


def test_the_file_is_a_zip_of_json_and_arrays_and_nothing_that_runs(fitted, tmp_path):
    path = tmp_path / "m.fedsynth"
    fitted.save(path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        head = json.loads(archive.read("head.json"))
    assert head["kind"] == "graphical"
    assert set(names) == {"head.json", *head["arrays"]}
    first = path.read_bytes()
    fitted.save(path)
    assert path.read_bytes() == first  # equal content, equal bytes


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"junk")
    with pytest.raises(FedsynthError, match="not a fedsynth archive"):
        load(tmp_path / "x")
    from fedsynth.archive import pack

    (tmp_path / "y").write_bytes(pack({"format": 99, "kind": "graphical"}, {}))
    with pytest.raises(FedsynthError, match="install the fedsynth version that wrote it"):
        load(tmp_path / "y")
    (tmp_path / "z").write_bytes(pack({"format": FORMAT, "kind": "copula", "axes": ["bins"], "model": {}}, {}))
    with pytest.raises(FedsynthError, match="not a complete model"):
        load(tmp_path / "z")
    damaged = bytearray(pack({"format": 99}, {}))
    for signature, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        damaged[damaged.index(signature) + at] = zipfile.ZIP_BZIP2  # one flipped bit from ZIP_DEFLATED
    (tmp_path / "w").write_bytes(damaged)
    with pytest.raises(FedsynthError, match="not a fedsynth archive"):
        load(tmp_path / "w")
    smuggled = np.array([print], dtype=object)
    with pytest.raises(ValueError, match="convert it to integers or floats"):
        pack({}, {"a": smuggled})


def test_rows_default_to_the_estimated_total_and_must_be_positive(fitted):
    assert abs(len(fitted.sample(seed=0)) - 240) < 40
    with pytest.raises(ValueError, match="at least 1"):
        fitted.sample(0)


def test_the_public_names_are_there():
    for name in fedsynth.__all__:
        assert getattr(fedsynth, name) is not None
    assert set(dir(fedsynth)) >= set(fedsynth.__all__)
