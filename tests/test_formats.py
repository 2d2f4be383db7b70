"""Files that fedsynth keeps, as another version wrote them or a disk damaged them: one sentence each, never a guess."""

from __future__ import annotations

import io
import os
import random
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.attacks.world import SCHEMA, ask_deployed, deployed, frame, question, table
from tests.world import agreed

from fedsynth.archive import pack, unpack
from fedsynth.cli.app import main
from fedsynth.deploy.backup import back_up_site, restore_site
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.rows import load_rows
from fedsynth.deploy.host.state import open_account, open_site, site_secret
from fedsynth.errors import FedsynthError
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.run_files import read_scores, write_scores
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.federation.agreement import Agreement, PlannedQuestion
from fedsynth.federation.transport import InProcess, Recorded, records
from fedsynth.federation.wire import AuditPosition
from fedsynth.keys import Keys
from fedsynth.models.synthesizer import load
from fedsynth.proof.extract import AccountExtract, extract
from fedsynth.publish.manifest import COORDINATOR, Manifest, PackSignature
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated
from fedsynth.runs.state import WitnessTransport, begin, load_coordinator
from fedsynth.schema import Schema

JOB = "ab" * 32


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one of each file that fedsynth keeps: a site's, a server's and a run's."""
    root = tmp_path_factory.mktemp("kept")
    site = deployed(root / "site", frame())
    ask_deployed(site, question())
    load_rows(site, SCHEMA, site_secret(site))
    back_up_site(site, root / "site.backup")
    (root / "coordinator.key").write_text("ab" * 32)
    (root / "coordinator.key").chmod(0o600)
    state = root / "state"
    state.mkdir()
    begin(state, JOB)
    witness = WitnessTransport(InProcess([]), state / "seen.json")
    witness.seen["north"] = AuditPosition(3, bytes(32))
    witness._write()
    frame(60).to_csv(root / "rows.csv", index=False)
    SCHEMA.save(root / "schema.toml")
    job = Job(
        "oneshot", 1.0, 1e-6, data=str(root / "rows.csv"), schema=str(root / "schema.toml"), sites=2, trust="local"
    )
    run_simulated(job, root / "run")
    shutil.copy(root / "run" / "transcript", state / "transcript")
    slots = (PlannedQuestion("sum", "counts", "gaussian", 0.02, 1, 3, 2, 100),)
    evaluation = evaluate(EvaluationTables(table(60), table(60, 1)), EvaluationSettings(metrics=("workload-error",)))
    write_scores(RunFolder(root / "run"), evaluation)
    (root / "job.toml").write_text(job.to_file())
    (root / "north.json").write_bytes(
        extract(open_account(site), site_secret(site), "north", "run", site.coordinator).to_json()
    )
    keys = Keys(bytes(range(32)))
    manifest = Manifest.of({"about.md": b"text"}, "run", keys.identity.hex())
    (root / "pack").mkdir()
    (root / "pack" / "manifest.json").write_bytes(manifest.to_json())
    (root / "pack" / "coordinator.json").write_bytes(PackSignature.of(COORDINATOR, manifest, keys).to_json())
    agreed(method="oneshot", schema=SCHEMA.digest, sites=2, slots=slots).save(root / "plan.toml")
    return root


@dataclass(frozen=True)
class Kept:
    """One file that is kept: where, how another version's differs, and what reads it."""

    path: str
    other: Callable[[bytes], bytes]
    read: Callable[[Path], object]


def swapped(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Return what writes another number of the format."""

    def change(content: bytes) -> bytes:
        assert content.count(old) >= 1
        return content.replace(old, new, 1)

    return change


def newer_account(content: bytes) -> bytes:
    """Return an account whose tables have another number: user_version, at byte 60 of the file."""
    assert int.from_bytes(content[60:64], "big") == 1
    return content[:60] + (5).to_bytes(4, "big") + content[64:]


def newer_model(content: bytes) -> bytes:
    """Return a model whose head says another format."""
    head, arrays = unpack(content)
    return pack({**head, "format": head["format"] + 1}, arrays)


def newer_backup(content: bytes) -> bytes:
    """Return a backup whose contents say another format."""
    old, new = io.BytesIO(content), io.BytesIO()
    with zipfile.ZipFile(old) as held, zipfile.ZipFile(new, "w") as copy:
        for name in held.namelist():
            text = held.read(name)
            copy.writestr(name, text.replace(b'"format":1', b'"format":2') if name == "backup.json" else text)
    return new.getvalue()


def account_of(root: Path) -> object:
    if wrong := open_account(load_site_config(root / "site")).verify().wrong:
        raise FedsynthError(f"{root}: {wrong}; put the last backup in its place")
    return None


def newer_rows(root: Path) -> object:
    with open_site(load_site_config(root / "site")).rows.opened("run") as rows:
        return rows


KEPT = {
    "account": Kept("site/state/account.sqlite", newer_account, account_of),
    "rows of a run": Kept("site/state/rows/*.rows", swapped(b"fedsynth rows 1", b"fedsynth rows 2"), newer_rows),
    "site.toml": Kept(
        "site/site.toml", lambda content: b"fedsynth_site = 2\n" + content, lambda root: load_site_config(root / "site")
    ),
    "backup": Kept("site.backup", newer_backup, lambda root: restore_site(root / "site.backup", root / "new")),
    "schema": Kept(
        "schema.toml",
        swapped(b"fedsynth_schema = 1", b"fedsynth_schema = 2"),
        lambda root: Schema.load(root / "schema.toml"),
    ),
    "plan": Kept(
        "plan.toml",
        swapped(b"fedsynth_plan = 1", b"fedsynth_plan = 9"),
        lambda root: Agreement.load(root / "plan.toml"),
    ),
    "beginning of a run": Kept(
        "state/run.json", swapped(b'"format":1', b'"format":2'), lambda root: begin(root / "state", JOB)
    ),
    "what was seen": Kept(
        "state/seen.json",
        swapped(b'"format":1', b'"format":3'),
        lambda root: WitnessTransport(InProcess([]), root / "state" / "seen.json"),
    ),
    "transcript": Kept(
        "state/transcript",
        swapped(b"fedsynth transcript 1", b"fedsynth transcript 2"),
        lambda root: Recorded(InProcess([]), root / "state" / "transcript"),
    ),
    "transcript of a complete run": Kept(
        "run/transcript",
        swapped(b"fedsynth transcript 1", b"fedsynth transcript 9"),
        lambda root: list(records(root / "run" / "transcript")),
    ),
    "run.toml": Kept(
        "run/run.toml", swapped(b"fedsynth_job = 1", b"fedsynth_job = 2"), lambda root: RunFolder(root / "run").job
    ),
    "ledger.json": Kept(
        "run/ledger.json", swapped(b'"format": 1', b'"format": 2'), lambda root: RunFolder(root / "run").ledger
    ),
    "model": Kept("run/model.fedsynth", newer_model, lambda root: load(root / "run" / "model.fedsynth")),
    "scores.json": Kept(
        "run/private/scores.json",
        swapped(b'"format": 1', b'"format": 7'),
        lambda root: read_scores(RunFolder(root / "run")),
    ),
    "extract": Kept(
        "north.json", swapped(b'"chain"', b'"chained"'), lambda root: AccountExtract.load(root / "north.json")
    ),
    "manifest of a pack": Kept(
        "pack/manifest.json", swapped(b'"format": 1', b'"format": 2'), lambda root: Manifest.load(root / "pack")
    ),
    "signature of a pack": Kept(
        "pack/coordinator.json",
        swapped(b'"manifest"', b'"manifests"'),
        lambda root: PackSignature.load(root / "pack" / "coordinator.json"),
    ),
    "job.toml": Kept(
        "job.toml", swapped(b"fedsynth_job = 1", b"fedsynth_job = 2"), lambda root: Job.load(root / "job.toml")
    ),
}


@pytest.fixture
def root(kept: Path, tmp_path: Path) -> Path:
    """Return a copy of the files that a test may spoil."""
    shutil.copytree(kept, tmp_path / "kept")
    return tmp_path / "kept"


def only(root: Path, pattern: str) -> Path:
    (path,) = root.glob(pattern)
    return path


def refused(read: Callable[[Path], object], root: Path) -> str:
    """Return the sentence that a file is refused with, empty if it is read; any other error is one of the test."""
    try:
        read(root)
    except FedsynthError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", KEPT)
def test_a_file_of_another_version_is_refused_with_what_to_do_next(name, root):
    one = KEPT[name]
    assert refused(one.read, root) == ""
    shutil.rmtree(root / "new", ignore_errors=True)
    path = only(root, one.path)
    path.write_bytes(one.other(path.read_bytes()))
    said = refused(one.read, root)
    assert said
    assert "\n" not in said
    assert "version" in said or "format" in said
    assert "; " in said  # what is, and after the semicolon what to do
    assert "fedsynth" in said


@pytest.mark.parametrize("name", KEPT)
def test_a_file_that_a_disk_damaged_is_read_or_refused_and_never_a_traceback(name, root):
    one, rng = KEPT[name], random.Random(0)
    path = only(root, one.path)
    whole, found = path.read_bytes(), 0
    for trial in range(40):
        content = bytearray(whole)
        at = rng.randrange(len(content))
        if trial % 4 == 0:
            del content[at:]
        elif trial % 4 == 1:
            content[at : at + 64] = rng.randbytes(len(content[at : at + 64]))
        else:
            content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        said = refused(one.read, root)
        found += bool(said)
        assert "\n" not in said
        shutil.rmtree(root / "new", ignore_errors=True)
    assert found > 4


def test_a_transcript_is_cut_where_a_crash_cut_it_and_nowhere_else(root):
    """A byte that is wrong in the middle is damage: to drop what follows would forget answers and releases."""
    path = root / "state" / "transcript"
    whole, rng = path.read_bytes(), random.Random(1)
    kinds = [kind for kind, _ in records(path)]
    ends = [path.stat().st_size]
    for _ in range(30):  # a crash
        path.write_bytes(whole[: rng.randrange(30, len(whole))] + bytes(rng.randrange(2) * 8192))
        assert refused(lambda root: Recorded(InProcess([]), path), root) == ""
        ends.append(path.stat().st_size)
        assert whole.startswith(path.read_bytes())
        assert [kind for kind, _ in records(path)] == kinds[: len(list(records(path)))]
    last = sorted(set(ends))[-2]  # where the last record begins
    for _ in range(30):
        at = rng.randrange(30, last)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "restore it from the backup" in refused(lambda root: Recorded(InProcess([]), path), root)
        assert path.stat().st_size == len(whole)


def test_the_cache_of_the_rows_is_made_anew_whatever_wrote_it(root):
    """It holds nothing that the source does not."""
    config = load_site_config(root / "site")
    table = load_rows(config, SCHEMA, site_secret(config))
    for content in (config.cache.read_bytes().replace(b"rows 1", b"rows 2", 1), b"", os.urandom(1000)):
        config.cache.write_bytes(content)
        assert load_rows(config, SCHEMA, site_secret(config)).digest == table.digest
        assert config.cache.read_bytes().startswith(b"fedsynth rows 1\n")


def test_keys_that_are_damaged_are_refused_with_what_to_do_next(root):
    for content in ("", "ab" * 31, "zz" * 32, "{}"):
        (root / "coordinator.key").write_text(content)
        with pytest.raises(FedsynthError, match="restore it from the backup"):
            load_coordinator(root)


def test_an_account_of_other_tables_is_refused(root):
    """The number of the format may be right where another program made the file."""
    path = only(root, "site/state/account.sqlite")
    with closing(sqlite3.connect(path)) as account:
        account.execute("DROP TABLE rejected")
        account.commit()
    assert "its tables are not an account's" in refused(account_of, root)


@pytest.mark.parametrize("name", ["site.toml", "account"])
def test_the_command_line_says_it_in_one_line(name, root, capsys):
    one = KEPT[name]
    path = only(root, one.path)
    path.write_bytes(one.other(path.read_bytes()))
    with pytest.raises(SystemExit) as stopped:
        main(["account", str(root / "site")])
    assert stopped.value.code in (2, 8)
    said = capsys.readouterr().err
    assert said.startswith("fedsynth: ")
    assert said.count("\n") == 1
