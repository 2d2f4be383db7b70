"""Files that a release wrote, one of each that every later version reads: pack, account, model, keys and roster.

The folders of ``tests/kept``, one for each release, are never rewritten. A change that cannot read them needs a reader
of the old form beside the new one; a test here is not changed for it. ``tests/kept/make.py`` writes the folder of a
further release.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.command import invoke

import fedsynth
from fedsynth.deploy.host.state import SECRET, make_node_key
from fedsynth.deploy.roster import SignedRoster, load
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.proof.extract import AccountExtract, extract
from fedsynth.publish.verify import verify
from fedsynth.runs.state import load_coordinator

HERE = Path(__file__).parent / "kept"
DIGESTS = {"0.1.0": "f62b68df1d718a14be8c5d8d3c775fa11ad67a851bcd4a23d214b960e992e41a"}
"""The releases, and the SHA-256 of all that each of them wrote."""
KINDS = {"0.1.0": ("bayes", "copula", "diffusion", "gan", "gradual", "graphical", "ranked", "vae")}


@pytest.fixture(params=DIGESTS)
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of what a release wrote, for its owner only, under a program of a later version."""
    monkeypatch.setattr(fedsynth, "__version__", "1000.0.0")
    copy, release = tmp_path / "kept", str(request.param)
    shutil.copytree(HERE / release, copy)
    for file in (copy, *copy.rglob("*")):
        file.chmod(0o700 if file.is_dir() else 0o600)
    return copy


@pytest.fixture
def site(kept: Path) -> Keys:
    """Return the keys of the site north, from its account."""
    secret = Book(kept / "site" / "account.sqlite").said("", SECRET)
    assert secret is not None
    return Keys(secret)


@pytest.mark.parametrize("release", DIGESTS)
def test_nothing_that_a_release_wrote_is_ever_written_again(release):
    found = hashlib.sha256()
    for file in sorted(path for path in (HERE / release).rglob("*") if path.is_file()):
        name, content = file.relative_to(HERE / release).as_posix(), file.read_bytes()
        found.update(f"{name} {len(content)}\n".encode() + content)
    assert found.hexdigest() == DIGESTS[release]


def test_a_pack_of_real_sites_is_verified_with_its_signatures(kept, site):
    coordinator = load_coordinator(kept)
    found = verify(kept / "pack", identities={"coordinator": coordinator.identity, "north": site.identity})
    assert found.problems == ()
    assert found.signed == {"coordinator": coordinator.identity.hex(), "north": site.identity.hex()}
    assert found.sheet is not None
    assert found.sheet.confirmed == ("north",)
    assert [line.entry.kind for line in found.sheet.lines] == ["weighted-counts", "weighted-counts", "counts"]
    assert invoke(["verify", kept / "pack"]).exit_code == 0


def test_a_pack_of_a_simulated_run_is_verified(kept):
    found = verify(kept / "simulated-pack")
    assert found.problems == ()
    assert found.sheet is not None
    assert found.sheet.limit == fedsynth.Budget(1.0, 1e-6)


@pytest.mark.parametrize("name", ["pack", "simulated-pack"])
def test_whatever_is_changed_in_a_pack_is_found(name, kept):
    for part in ("data/synthetic.csv", "proof/transcript", "answers/answers.json"):
        content = (kept / name / part).read_bytes()
        (kept / name / part).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert any(part in problem for problem in verify(kept / name).problems)
        (kept / name / part).write_bytes(content)


def test_an_account_is_read_verified_and_goes_on(kept, site):
    account, told = Book(kept / "site" / "account.sqlite"), AccountExtract.load(kept / "extract.json")
    (charged,) = {charge["run"] for charge in account.charges()}
    checked = account.verify()
    assert not checked.wrong
    assert checked.rows == account.head()[0] == told.row
    assert account.spent().rho == account.spent(charged).rho == pytest.approx(told.total.rho)
    assert extract(account, site.secret, "north", charged, load_coordinator(kept).public) == told
    assert account.close(charged) == len(told.charges) == 3
    assert not account.verify().wrong
    assert account.spent().rho == pytest.approx(told.total.rho)


def test_an_extract_is_signed_by_its_site(kept, site):
    told = AccountExtract.load(kept / "extract.json")
    assert told.signed
    assert told.identity == site.identity.hex()
    assert told.coordinator == load_coordinator(kept).public.hex()
    assert [charge.kind for charge in told.charges] == ["weighted-counts", "weighted-counts", "counts"]


def test_keys_and_the_roster_belong_together(kept, site):
    signed = load(kept / "site" / "roster.toml", SignedRoster)
    signed.check(load_coordinator(kept).public)
    assert signed.unsigned == ()
    assert [member.name for member in signed.roster.members] == ["north", "south"]
    north = signed.roster.members[0]
    assert north.identity == site.identity.hex()
    assert north.node_key == make_node_key(kept / "site" / "node-key")


@pytest.mark.parametrize("release", DIGESTS)
def test_a_model_of_each_kind_is_kept(release):
    assert sorted(file.stem for file in (HERE / release / "models").iterdir()) == sorted([*KINDS[release], "tilted"])


def sampled(file: Path, rows: int = 50) -> pd.DataFrame:
    """Return rows of a kept model, all of them valid under its schema."""
    model = fedsynth.load(file)
    frame = model.sample(rows, 0)
    assert list(frame.columns) == ["sex", "nights", "bill"]
    assert set(frame["sex"]) <= {"f", "m"}
    assert frame["nights"].dropna().between(0, 40).all()
    assert frame["bill"].between(0, 60_000).all()
    assert len(frame) == rows
    return frame


@pytest.mark.parametrize(("release", "kind"), [(release, kind) for release, kinds in KINDS.items() for kind in kinds])
def test_a_model_of_each_kind_draws_rows(release, kind):
    if kind in ("diffusion", "gan", "vae"):
        pytest.importorskip("torch")
    file = HERE / release / "models" / f"{kind}.fedsynth"
    model = fedsynth.load(file)
    assert model.model.kind == kind
    assert model.statement is not None
    assert model.statement.seeded
    assert model.statement.limit == fedsynth.Budget(10.0, 1e-6)
    assert 0 < model.model.total < 2000
    sampled(file)


def test_a_model_keeps_its_answers_and_its_tilt(kept):
    model = fedsynth.load(kept / "models" / "tilted.fedsynth")
    assert model.tilt is not None
    assert model.statement is not None
    assert model.statement.publishable
    answers = model.answers.frame
    published = pd.read_csv(kept / "pack" / "answers" / "answers.csv")
    assert list(answers["question"]) == list(published["question"]) == ["women", "nights"]
    assert np.allclose(answers["value"], published["value"])
    sampled(kept / "models" / "tilted.fedsynth")
