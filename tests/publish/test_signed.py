"""The pack of a run of real sites: signed by the coordinator, confirmed by sites, and what is found wrong in it."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs
from tests.command import invoke

pytest.importorskip("fedsynth.deploy")

from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import RUN, SEED, lay_out, run_over_files
from tests.publish.world import content

from fedsynth.deploy.files.server import RepliesMissing
from fedsynth.deploy.files.site import FileAnswerer
from fedsynth.errors import FedsynthError
from fedsynth.federation.simulate import _secret
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Budget
from fedsynth.proof.extract import AccountExtract, sign_extract
from fedsynth.publish.manifest import Manifest, PackSignature
from fedsynth.publish.pack import publish_run, sign_pack
from fedsynth.publish.verify import verify

ROOT = Path(__file__).parents[2]
SITES = ("east", "north", "south")
DETAILS = {"title": "Stays", "publisher": "Health Office", "licence": "CC-BY-4.0"}
COORDINATOR = Keys(_secret(SEED, "coordinator"))
KEYS = {name: Keys(_secret(SEED, name)) for name in SITES}
IDENTITIES = {"coordinator": COORDINATOR.identity, **{name: keys.identity for name, keys in KEYS.items()}}


def make_run(folder: Path) -> Path:
    """Make a run of three sites, whose messages are carried as files; return the federation's folder."""
    root, exchange = folder / "federation", folder / "exchange"
    tables = {name: random_table(200, at) for at, name in enumerate(SITES)}
    lay_out(root, tables, SCHEMA, "secure", "oneshot", budget=Budget(2.0, 1e-6), trust_options={"min_honest": 2})
    exchange.mkdir()
    for _ in range(100):
        try:
            run_over_files(root, exchange, wait=False)
        except RepliesMissing:
            for name in SITES:
                FileAnswerer(root / "sites" / name, exchange, lambda _: None).answer_once()
        else:
            return root
    raise AssertionError("the run never ends")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("signed"))


@pytest.fixture(scope="module")
def extracts(federation: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return each site's extract, as the site itself prints it."""
    folder = tmp_path_factory.mktemp("extracts")
    for name in SITES:
        said = invoke(["account", federation / "sites" / name, "--extract", RUN])
        assert said.exit_code == 0, said.output
        (folder / f"{name}.json").write_text(said.output)
    return {name: folder / f"{name}.json" for name in SITES}


@pytest.fixture(scope="module")
def pack(federation: Path, extracts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("published") / "pack"
    return publish_run(federation / "runs" / RUN, to, DETAILS, extracts=[*extracts.values()]).pack


@pytest.fixture
def copy(pack: Path, tmp_path: Path) -> Path:
    shutil.copytree(pack, tmp_path / "pack")
    return tmp_path / "pack"


def test_a_stranger_verifies_it_with_the_consortiums_keys(pack):
    words = [word for name, key in IDENTITIES.items() for word in ("--identity", f"{name}={key.hex()}")]
    said = invoke(["verify", pack, *words])
    assert said.exit_code == 0, said.output
    flat = " ".join(said.output.split())
    assert "confirmed by the signed accounts of east, north, south" in flat
    assert "signed by coordinator" in flat
    assert flat.endswith("The pack is whole, and its privacy cost is as it says.")
    found = verify(pack)
    assert not found.problems
    assert any(COORDINATOR.identity.hex() in note for note in found.notes)
    assert json.loads(invoke(["verify", pack, "--json"]).output)["signed"] == {
        "coordinator": COORDINATOR.identity.hex()
    }


def test_a_script_without_fedsynth_verifies_it_and_names_what_was_changed(copy):
    def said(*keys: str) -> tuple[int, str]:
        script = ROOT / "examples" / "verify_pack.py"
        done = subprocess.run([sys.executable, "-I", script, copy, *keys], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout

    assert "fedsynth" not in re.findall(
        r"^\s*(?:import|from) (\w+)", (ROOT / "examples/verify_pack.py").read_text(), re.M
    )
    coordinator = f"coordinator={COORDINATOR.identity.hex()}"
    assert said(coordinator) == said() == (0, f"verified: {len(Manifest.load(copy).files)} files\n")
    code, out = said(f"coordinator={KEYS['north'].identity.hex()}", f"north={KEYS['north'].identity.hex()}")
    assert (code, out.count("PROBLEM"), "by another key" in out, "of north is missing" in out) == (1, 2, True, True)
    ledger = json.loads((copy / "proof" / "ledger.json").read_text())
    ledger["entries"][0]["cost"]["rho"] *= 2
    (copy / "proof" / "ledger.json").write_text(json.dumps(ledger))
    code, out = said(coordinator)
    assert code == 1
    assert "proof/ledger.json is missing or was changed" in out
    assert "and the ledger says" in out
    assert "exceed the budget" in out
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "run": "another"}))
    assert "of coordinator is of another manifest" in said(coordinator)[1]


def test_without_extracts_it_says_whose_word_it_is(federation, tmp_path):
    run = tmp_path / "federation" / "runs" / RUN
    shutil.copytree(federation, tmp_path / "federation", ignore=shutil.ignore_patterns("sites", "publication"))
    made = publish_run(run, tmp_path / "pack", DETAILS)
    found = verify(made.pack, identities={"coordinator": COORDINATOR.identity})
    assert not found.problems
    assert found.sheet is not None
    assert found.sheet.basis == "as told by the server"
    (wrong,) = verify(made.pack, identities={"north": KEYS["north"].identity}).problems
    assert wrong == "north has signed neither this pack nor an extract in it"


def test_it_holds_nothing_of_a_sites_folder_but_what_its_replies_carried(federation, pack):
    """Neither rows nor secrets: what a site sent is in the transcript, and its extract shows questions and costs."""
    rows = [(federation / "sites" / name / "rows.csv").read_bytes() for name in SITES]
    secrets = [COORDINATOR.secret, *(keys.secret for keys in KEYS.values())]
    for name, held in content(pack).items():
        assert not any(text in held for text in (*rows, *secrets, *(secret.hex().encode() for secret in secrets))), name


def test_published_again_elsewhere_without_the_key_it_is_the_same(federation, pack, tmp_path):
    shutil.copytree(federation / "runs" / RUN, tmp_path / "run")
    assert content(publish_run(tmp_path / "run", tmp_path / "again", {}).pack) == content(pack)
    with pytest.raises(FedsynthError, match=r"coordinator\.key is missing"):
        publish_run(tmp_path / "run", tmp_path / "other", {"title": "Other"})
    assert not (tmp_path / "other").exists()


def test_a_missing_signature_is_named(copy):
    (copy / "signatures" / "coordinator.json").unlink()
    assert verify(copy).problems == ("the signature of coordinator is missing",)
    said = invoke(["verify", copy])
    assert said.exit_code == 8
    assert "PROBLEM: the signature of coordinator is missing" in said.output


def test_a_missing_extract_is_named(copy):
    (copy / "proof" / "extracts" / "north.json").unlink()
    assert verify(copy).problems == ("proof/extracts/north.json is missing",)


def test_another_key_is_named(copy):
    other = Keys(os.urandom(32))
    (problem,) = verify(copy, identities={"coordinator": other.identity}).problems
    assert problem.startswith("the signature of coordinator is by another key than the one that you gave")
    problems = verify(copy, identities={"north": other.identity}).problems
    assert "extract of north: it is signed with another key than the site's identity" in problems
    forged = PackSignature.of("coordinator", Manifest.load(copy), other)
    (copy / "signatures" / "coordinator.json").write_bytes(forged.to_json())
    (problem,) = verify(copy).problems
    assert problem.startswith("the signature of coordinator is by another key than the manifest says")


def test_a_manifest_that_was_made_anew_is_not_signed(copy):
    """Whoever changes a file and the manifest lacks the key; to sign with another one is found by the extracts."""
    (copy / "about.md").write_text("All is well.")
    listed = {name: held for name, held in content(copy).items() if not name.startswith(("signatures/", "manifest"))}
    manifest = Manifest.of(listed, RUN, COORDINATOR.identity.hex())
    (copy / "manifest.json").write_bytes(manifest.to_json())
    (problem,) = verify(copy).problems
    assert problem == (
        "the signature of coordinator is of another manifest: the manifest was changed after it was signed"
    )
    other = Keys(os.urandom(32))
    manifest = Manifest.of(listed, RUN, other.identity.hex())
    (copy / "manifest.json").write_bytes(manifest.to_json())
    (copy / "signatures" / "coordinator.json").write_bytes(PackSignature.of("coordinator", manifest, other).to_json())
    assert [problem.partition(":")[0] for problem in verify(copy).problems] == [f"extract of {name}" for name in SITES]
    shutil.rmtree(copy / "signatures")
    (copy / "manifest.json").write_bytes(Manifest.of(listed, RUN, "").to_json())
    assert verify(copy).problems == (
        "the run is one of real sites, and the manifest names no coordinator that signs it",
    )


def test_a_damaged_signature_is_named(copy):
    file = copy / "signatures" / "coordinator.json"
    held = json.loads(file.read_text())
    file.write_text(json.dumps({**held, "signature": "00" * 64}))
    assert verify(copy).problems == ("the signature of coordinator is wrong: it was changed, or made by another key",)
    file.write_text("{}")
    (problem,) = verify(copy).problems
    assert "is not a signature of a pack" in problem
    file.write_text(json.dumps(held))
    shutil.copy(file, copy / "signatures" / "north.json")
    assert verify(copy).problems == ("the signature of north is that of coordinator",)


def test_sites_sign_what_they_have_verified(federation, copy, tmp_path):
    said = invoke(["account", federation / "sites" / "north", "--sign", copy])
    assert said.exit_code == 0, said.output
    assert "signed as north" in said.output
    found = verify(copy, identities=IDENTITIES)
    assert not found.problems
    assert sorted(found.signed) == ["coordinator", "north"]
    run = tmp_path / "run"
    shutil.copytree(federation / "runs" / RUN, run)
    words = ["publish", run, "--to", tmp_path / "signed", "--signature", copy / "signatures" / "north.json"]
    assert invoke(words).exit_code == 0
    assert content(tmp_path / "signed") == content(copy)
    stranger = PackSignature.of("north", Manifest.load(copy), Keys(os.urandom(32)))
    (copy / "signatures" / "north.json").write_bytes(stranger.to_json())
    assert verify(copy).problems == ("the signature of north is not by the key of a site of this run",)
    (copy / "about.md").write_text("All is well.")
    with pytest.raises(FedsynthError, match="is not signed, since it cannot be verified"):
        sign_pack(copy, "south", KEYS["south"], COORDINATOR.identity)
    assert not (copy / "signatures" / "south.json").exists()


def test_a_site_signs_for_its_own_coordinator_alone(copy):
    with pytest.raises(FedsynthError, match="by another key than the one that you gave"):
        sign_pack(copy, "north", KEYS["north"], Keys(os.urandom(32)).identity)


def test_signatures_of_an_earlier_pack_are_left_out(federation, copy, tmp_path, caplog):
    sign_pack(copy, "north", KEYS["north"], COORDINATOR.identity)
    root = tmp_path / "federation"
    shutil.copytree(federation, root, ignore=shutil.ignore_patterns("sites"))
    with caplog.at_level(logging.WARNING):
        made = publish_run(
            root / "runs" / RUN,
            tmp_path / "other",
            {"title": "Other"},
            signatures=[copy / "signatures" / "north.json"],
        )
    assert made.signed == ("coordinator",)
    assert "the signature of north is of another pack" in caplog.text
    assert not verify(made.pack).problems


def test_an_extract_of_another_run_or_a_changed_one_is_refused(federation, extracts, tmp_path):
    content = json.loads(extracts["north"].read_text())
    (tmp_path / "north.json").write_text(json.dumps({**content, "row": content["row"] + 1}))
    with pytest.raises(FedsynthError, match="its signature is wrong; get the file again from 'north'"):
        publish_run(federation / "runs" / RUN, tmp_path / "pack", {}, extracts=[tmp_path / "north.json"])
    said = invoke(["account", federation / "sites" / "north", "--extract", "another"])
    (tmp_path / "north.json").write_text(said.output)
    with pytest.raises(FedsynthError, match="it is of run 'another'"):
        publish_run(federation / "runs" / RUN, tmp_path / "pack", {}, extracts=[tmp_path / "north.json"])


@pytest.mark.parametrize("name", ["../../north", "west", "north"])
def test_an_extract_of_a_stranger_is_refused_and_names_no_file(federation, extracts, tmp_path, name):
    content = structs.replace(AccountExtract.load(extracts["north"]), site=name)
    (tmp_path / "some.json").write_bytes(sign_extract(content, os.urandom(32)).to_json())
    says = (
        "signed with another key than the site's identity" if name == "north" else "no site of this run has that name"
    )
    with pytest.raises(FedsynthError, match=says):
        publish_run(federation / "runs" / RUN, tmp_path / "pack", {}, extracts=[tmp_path / "some.json"])
    assert [file.name for file in tmp_path.iterdir()] == ["some.json"]
