"""Backups of a site and of a server, what is put back from them, and what a site answers afterwards."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.attacks.world import answer_in, deployed, frame, question, sealed
from tests.attacks.world import ask_deployed as ask

from fedsynth.cli.app import main
from fedsynth.deploy.backup import (
    BackupContents,
    back_up_server,
    back_up_site,
    kind_of,
    restore_server,
    restore_site,
)
from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.rows import close_run
from fedsynth.deploy.host.state import answer, make_node_key, open_account, site_secret
from fedsynth.errors import FedsynthError, Refused
from fedsynth.federation.agreement import PlannedQuestion
from fedsynth.federation.wire import AuditPosition
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Budget, Norms
from fedsynth.privacy.release import Gaussian
from fedsynth.runs.state import COORDINATOR as SECRET_FILE

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def config(tmp_path: Path) -> SiteConfig:
    """Return a deployed site with a node key."""
    config = deployed(tmp_path / "north", frame())
    make_node_key(config.key)
    return config


def command(*arguments: object) -> int:
    """Run the command line, and return its exit code."""
    with pytest.raises(SystemExit) as stopped:
        main([str(one) for one in arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def rewritten(archive: Path, change: Any, to: Path) -> Path:
    """Write a copy of a backup whose contents or files went through ``change(name, bytes)``."""
    with zipfile.ZipFile(archive) as held, zipfile.ZipFile(to, "w") as copy:
        for name in held.namelist():
            for other, content in change(name, held.read(name)):
                copy.writestr(other, content)
    return to


# ---------------------------------------------------------------------------------------------------------------------
# A site


def test_a_site_that_is_put_back_elsewhere_goes_on(config, tmp_path):
    """Nothing was charged since: the run goes on, stored replies are the same bytes, and the secret is the same."""
    first, second = question(), question(step=1)
    reply = ask(config, first)
    backup = tmp_path / "north.backup"
    contents, elsewhere = back_up_site(config, backup, with_rows=True)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert (contents.row, elsewhere) == (1, ())
    assert {"site.toml", "schema.toml", "node-key", "node-key.pub", "state/account.sqlite"} < set(contents.files)
    assert not [name for name in contents.files if name.endswith(".csv")]
    _, aside = restore_site(backup, tmp_path / "new")
    back = load_site_config(tmp_path / "new")
    assert aside == []
    assert back.account.stat().st_mode & 0o777 == 0o600
    assert site_secret(back) == site_secret(config)
    assert answer_in(ask(back, first, reply.seen).data) == answer_in(reply.data)
    (tmp_path / "new" / "rows.csv").write_bytes((config.folder / "rows.csv").read_bytes())  # the source is not ours
    assert ask(back, second, reply.seen).code == "answered"
    account = open_account(back)
    assert account.verify().wrong == ""
    assert len(account.charges()) == 2


def test_without_the_rows_an_open_run_ends_at_the_restored_site(config, tmp_path):
    ask(config, question())
    back_up_site(config, tmp_path / "backup")
    restore_site(tmp_path / "backup", tmp_path / "new")
    (tmp_path / "new" / "rows.csv").write_bytes((config.folder / "rows.csv").read_bytes())
    assert ask(load_site_config(tmp_path / "new"), question(step=1)).code == "failed"


def test_an_older_backup_refuses_until_the_difference_is_written_off(config, tmp_path, capsys):
    """What the coordinator saw and the backup does not know is charged in full by the command that restore prints."""
    ask(config, question())
    backup = tmp_path / "backup"
    assert command("backup", config.folder, backup) == 0
    lost = ask(config, question(step=1))
    config.account.write_bytes(b"\0" * 100)
    assert command("restore", backup, config.folder) == 8
    assert "--replace" in capsys.readouterr().err
    capsys.readouterr()
    assert command("restore", backup, config.folder, "--replace", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    kept = [Path(path) for path in facts["aside"] if "account.sqlite" in path]
    assert [path.read_bytes() for path in kept] == [b"\0" * 100]
    assert (facts["row"], facts["name"]) == (1, "north")
    assert ask(config, question(step=2), lost.seen).code == "refused"
    assert open_account(config).spent().rho == pytest.approx(question().head.release.cost(Norms(1, 1)).rho)
    assert command("account", config.folder, "--restored", lost.seen, "--yes") == 0
    account = open_account(config)
    assert config.policy.budget.price(account.spent()) >= config.policy.budget.rho * (1 - 1e-9)
    assert account.verify().wrong == ""
    assert '"put back"' in "".join(account.export())
    assert ask(config, question(step=2), lost.seen).code == "refused"  # its run was written off and closed


def test_what_a_restored_backup_is_charged_is_said_first_and_no_more_is_charged(tmp_path, capsys):
    """Three runs open at the backup, one complete, one that began later; before, nothing was said and all was spent."""
    limits = {"budget": {"epsilon": 4.0, "delta": 1e-6}, "per_run": {"epsilon": 0.5, "delta": 1e-6}}
    config = deployed(tmp_path / "north", frame(), **limits)
    tables = PlannedQuestion("each", "counts", "gaussian", Budget(0.5, 1e-6).rho, 9, columns=3, order=3, cells=100)
    plan = replace(question().agreement, budget=Budget(0.5, 1e-6), slots=(tables,))
    plan.save(tmp_path / "plan.toml")
    asked = partial(question, verb="each", plan=plan)
    for run in ("one", "two", "three", "complete"):
        assert ask(config, asked(run=run)).code == "answered"
    close_run(config, open_account(config), "complete")
    assert command("backup", config.folder, tmp_path / "backup") == 0
    known = open_account(config).spent().rho
    ask(config, asked(run="later"))
    last = ask(config, asked(run="one", step=1)).seen
    assert command("restore", tmp_path / "backup", config.folder, "--replace") == 0
    assert ask(config, asked(run="two", step=2), last).code == "refused"
    before = open_account(config).head()
    text = (config.folder / "site.toml").read_text()  # whatever the steward has approved by now
    (config.folder / "site.toml").write_text(text.replace('plans = "any"', 'methods = ["mst"]\nplans = "any"'))
    written = ("account", config.folder, "--restored", last, "--began", f"later={tmp_path / 'plan.toml'}")
    capsys.readouterr()
    assert command(*written) == 9  # nobody can be asked here
    told = capsys.readouterr()
    assert "--yes" in told.err
    limit, one = Budget(0.5, 1e-6).rho, asked().head.release.cost(Norms(1, 1)).rho
    for run in ("one", "two", "three"):
        assert f"run {run}: up to its limit, epsilon 0.5 at delta 1e-06: rho {limit - one:.6g} more" in told.out
    assert "run complete" not in told.out
    assert "training" not in told.out
    assert (
        f"run later: up to its limit, epsilon 0.5 at delta 1e-06, that of plan {plan.digest}: rho {limit:.6g} "
        in told.out
    )
    assert f"in all rho {4 * limit - 3 * one:.6g}" in told.out
    assert command(*written, "--json") == 9
    announced = json.loads(capsys.readouterr().out)
    assert [lost["run"] for lost in announced["runs"]] == ["one", "three", "two", "later"]
    assert open_account(config).head() == before
    assert command(*written, "--yes") == 0
    account = open_account(config)
    assert announced["after"]["rho"] == account.spent().rho == pytest.approx(known + 4 * limit - 3 * one)
    assert f"{account.spent().at(1e-6):.4g} afterwards" in capsys.readouterr().out
    assert account.verify().wrong == ""
    assert account.open_runs() == []
    (config.folder / "site.toml").write_text(text)
    assert ask(load_site_config(config.folder), asked(run="next"), last).code == "answered"


def test_a_run_that_began_after_the_backup_is_charged_its_plan_only_if_the_steward_names_it(tmp_path, capsys):
    """At a large budget, a lost run of epsilon 1 cost 20 times as much, though no plan with training was approved."""
    config = deployed(tmp_path / "north", frame(), budget={"epsilon": 1000.0, "delta": 1e-6})
    tables = PlannedQuestion("each", "counts", "gaussian", Budget(1.0, 1e-6).rho, 1, columns=3, order=3, cells=100)
    plan = replace(question().agreement, budget=Budget(1.0, 1e-6), slots=(tables,))
    trained = PlannedQuestion("sum", "gradient-sum", "sampled", 1e-4, 9, rate=0.1, multiplier=8.0, steps=1)
    for name, slots in {"quiet": plan.slots, "trained": (tables, trained), "none": ()}.items():
        replace(plan, slots=slots).save(tmp_path / f"{name}.toml")
    back_up_site(config, tmp_path / "backup")
    last = ask(config, question(run="lost", verb="each", plan=plan, release=Gaussian(0.02))).seen
    costs = {}
    for began in ("lost", *(f"lost={tmp_path / name}.toml" for name in ("quiet", "trained", "none"))):
        restore_site(tmp_path / "backup", config.folder, replace=True)
        code = command("account", config.folder, "--restored", last, "--began", began, "--yes")
        costs[began.rpartition("/")[2]] = config.policy.budget.price(open_account(config).spent())
        assert code == (2 if "none" in began else 0)
    assert "is no plan" in capsys.readouterr().err
    assert costs["quiet.toml"] == pytest.approx(Budget(1.0, 1e-6).rho)
    assert costs["trained.toml"] > 10 * costs["quiet.toml"]
    assert costs["lost"] >= Budget(1000.0, 1e-6).rho * (1 - 1e-9)
    assert costs["none.toml"] == 0


def test_a_write_off_that_may_be_of_training_rises_as_announced_too(tmp_path, capsys):
    limits = {"budget": {"epsilon": 4.0, "delta": 1e-6}, "per_run": {"epsilon": 0.5, "delta": 1e-6}}
    config = deployed(tmp_path / "north", frame(), **limits)
    ask(config, question())
    lost = str(AuditPosition.signed(Keys(site_secret(config)).seed, "north", 9, bytes(32)))
    assert command("account", config.folder, "--restored", lost, "--json") == 9
    after = json.loads(capsys.readouterr().out)["after"]
    assert command("account", config.folder, "--restored", lost, "--yes") == 0
    said, spent = capsys.readouterr().out, open_account(config).spent()
    assert after["curve"] == list(spent.curve)
    assert "what is lost may be training" in said
    assert f"{spent.at(1e-6):.4g} afterwards" in said


def test_what_was_not_announced_is_not_charged(config):
    """A question that comes between the announcement and the yes."""
    ask(config, question())
    account = open_account(config)
    announced = account.lost()
    ask(config, question(run="another"))
    before = account.head()
    with pytest.raises(Refused, match="changed since"):
        account.restored(9, announced=announced)
    assert account.head() == before


def test_restore_says_the_next_command(config, tmp_path, capsys):
    ask(config, question())
    command("backup", config.folder, tmp_path / "backup")
    capsys.readouterr()
    assert command("restore", tmp_path / "backup", tmp_path / "new") == 0
    said = capsys.readouterr().out
    assert f"fedsynth account {tmp_path / 'new'} --restored ENTRY --began RUN" in said
    assert "not above 1, nothing is missing" in said


def _asks(config: SiteConfig, steps: range) -> None:
    for step in steps:
        answer(config, [sealed(question(step=step, release=Gaussian(1e-5)))])


def test_backups_that_are_made_while_the_site_answers_are_whole(config, tmp_path):
    """Each is the account at one moment: verified, with a reply to each charge but the last, and never shorter."""
    ask(config, question(step=999, release=Gaussian(1e-5)))
    others = [FORK.Process(target=_asks, args=(config, range(at, 60, 2))) for at in range(2)]
    rows = [back_up_site(config, tmp_path / "1.backup")[0].row]
    for process in others:
        process.start()
    while any(process.is_alive() for process in others):
        rows.append(back_up_site(config, tmp_path / f"{len(rows) + 1}.backup")[0].row)
    for process in others:
        process.join()
        assert process.exitcode == 0
    rows.append(back_up_site(config, tmp_path / f"{len(rows) + 1}.backup")[0].row)  # of all that was answered
    assert rows == sorted(rows)
    assert rows[0] < rows[-1]
    for at in {1, len(rows) // 2 + 1, len(rows)}:
        restore_site(tmp_path / f"{at}.backup", tmp_path / f"new-{at}")
        assert open_account(load_site_config(tmp_path / f"new-{at}")).verify().wrong == ""


def test_a_journal_of_the_damaged_account_does_not_reach_the_one_that_is_put_back(config, tmp_path):
    """SQLite rolls back a journal that it finds beside a database, whoever left it there."""
    ask(config, question())
    backup = tmp_path / "backup"
    back_up_site(config, backup)
    journal = config.account.with_name("account.sqlite-journal")
    journal.write_bytes(os.urandom(4096))
    _, aside = restore_site(backup, config.folder, replace=True)
    assert not journal.exists()
    assert any("account.sqlite-journal" in path.name for path in aside)
    assert open_account(config).verify().wrong == ""


def test_a_state_elsewhere_is_put_back_where_the_file_says(config, tmp_path):
    file = config.folder / "site.toml"
    file.write_text(file.read_text().replace("[site]", f'[site]\nstate = "{tmp_path / "disk"}"'))
    config.state.rename(tmp_path / "disk")
    config = load_site_config(config.folder)
    ask(config, question())
    back_up_site(config, tmp_path / "backup")
    (tmp_path / "disk").rename(tmp_path / "gone")
    restore_site(tmp_path / "backup", tmp_path / "new")
    assert (tmp_path / "disk" / "account.sqlite").is_file()
    assert open_account(load_site_config(tmp_path / "new")).verify().wrong == ""


def test_a_state_elsewhere_that_is_in_use_is_not_touched_without_being_told(config, tmp_path):
    file = config.folder / "site.toml"
    file.write_text(file.read_text().replace("[site]", f'[site]\nstate = "{tmp_path / "disk"}"'))
    config.state.rename(tmp_path / "disk")
    back_up_site(load_site_config(config.folder), tmp_path / "backup")
    ask(load_site_config(config.folder), question())
    live = (tmp_path / "disk" / "account.sqlite").read_bytes()
    with pytest.raises(FedsynthError, match="account of a site that answers"):
        restore_site(tmp_path / "backup", tmp_path / "new")
    assert (tmp_path / "disk" / "account.sqlite").read_bytes() == live
    assert not (tmp_path / "new").exists()
    _, aside = restore_site(tmp_path / "backup", tmp_path / "new", replace=True)
    assert live in [path.read_bytes() for path in aside]


def test_a_backup_goes_to_a_disk_without_hard_links_and_replaces_nothing_there(config, tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what Linux says of vfat and exFAT

    monkeypatch.setattr("fedsynth.deploy.backup.os.link", refused)
    back_up_site(config, tmp_path / "backup")
    made = (tmp_path / "backup").read_bytes()
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FedsynthError, match="may be the only backup"):
        back_up_site(config, tmp_path / "backup")
    assert (tmp_path / "backup").read_bytes() == made
    assert restore_site(tmp_path / "backup", tmp_path / "new")[0].name == config.name


def test_a_backup_replaces_no_file_and_is_not_made_of_a_damaged_account(config, tmp_path):
    to = tmp_path / "backup"
    to.write_bytes(b"the only one")
    with pytest.raises(FedsynthError, match="exists and may be the only backup"):
        back_up_site(config, to)
    assert to.read_bytes() == b"the only one"
    ask(config, question())
    whole = bytearray(config.account.read_bytes())
    at = whole.find(b'"outcome":"charged"')
    whole[at + 12] ^= 1
    config.account.write_bytes(whole)
    with pytest.raises(FedsynthError, match="damaged"):
        back_up_site(config, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "north"]
    assert not list(config.state.glob(".backup*"))


def test_what_lies_elsewhere_is_named(config, tmp_path, capsys):
    file = config.folder / "site.toml"
    (config.folder / "schema.toml").rename(tmp_path / "agreed.toml")
    file.write_text(file.read_text().replace('"schema.toml"', f'"{tmp_path / "agreed.toml"}"'))
    assert command("backup", config.folder, tmp_path / "backup") == 0
    assert f"not included, since it is outside the folder: {tmp_path / 'agreed.toml'}" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------------
# Archives that are refused


def test_an_archive_that_is_damaged_anywhere_is_refused_and_changes_nothing(config, tmp_path):
    """One byte, wherever it is, or an end that is missing: one sentence, and the folder is as it was."""
    ask(config, question())
    backup, rng = tmp_path / "backup", random.Random(0)
    back_up_site(config, backup)
    whole = backup.read_bytes()
    refused = 0
    for trial in range(60):
        content = bytearray(whole)
        at = rng.randrange(len(content))
        if trial % 6 == 0:
            del content[at:]
        else:
            content[at] ^= 1 << rng.randrange(8)
        backup.write_bytes(content)
        folder, said = tmp_path / f"new-{trial}", ""
        try:
            restore_site(backup, folder)
        except FedsynthError as error:
            refused, said = refused + 1, str(error)
        if said:
            assert str(backup) in said
            assert not folder.exists()
        else:  # a byte that says nothing, such as a time stamp: then everything is right
            assert open_account(load_site_config(folder)).verify().wrong == ""
    assert refused > 30


def test_an_archive_leads_nowhere_else(config, tmp_path):
    backup = tmp_path / "backup"
    back_up_site(config, backup)

    def led_out(name: str, content: bytes) -> list[tuple[str, bytes]]:
        if name == "backup.json":
            contents = msgspec.json.decode(content, type=BackupContents)
            files = {("../evil" if key == "schema.toml" else key): value for key, value in contents.files.items()}
            return [(name, msgspec.json.encode(msgspec.structs.replace(contents, files=files)))]
        return [("../evil" if name == "schema.toml" else name, content)]

    evil = rewritten(backup, led_out, tmp_path / "evil.backup")
    with pytest.raises(FedsynthError, match="leads out of the folder"):
        restore_site(evil, tmp_path / "deep" / "new")
    assert not list(tmp_path.rglob("evil"))


def test_a_state_elsewhere_takes_an_account_and_rows_alone(config, tmp_path):
    backup = tmp_path / "backup"
    back_up_site(config, backup)
    (tmp_path / "home").mkdir()

    def planted(name: str, content: bytes) -> list[tuple[str, bytes]]:
        if name == "backup.json":
            contents = msgspec.json.decode(content, type=BackupContents)
            files = {
                ("state/authorized_keys" if key == "schema.toml" else key): one for key, one in contents.files.items()
            }
            files["site.toml"] = hashlib.sha256(site).hexdigest()
            return [(name, msgspec.json.encode(msgspec.structs.replace(contents, files=files)))]
        if name == "site.toml":
            return [(name, site)]
        return [("state/authorized_keys" if name == "schema.toml" else name, content)]

    text = (config.folder / "site.toml").read_text()
    site = text.replace("[site]", f'[site]\nstate = "{tmp_path / "home"}"').encode()
    evil = rewritten(backup, planted, tmp_path / "evil.backup")
    with pytest.raises(FedsynthError, match="no site has in its state"):
        restore_site(evil, tmp_path / "new")
    assert not list((tmp_path / "home").iterdir())


def test_an_archive_cannot_unfold_on_the_disk(config, tmp_path):
    back_up_site(config, tmp_path / "backup")
    with zipfile.ZipFile(tmp_path / "backup") as held, zipfile.ZipFile(tmp_path / "bomb", "w") as copy:
        for name in held.namelist():
            copy.writestr(name, held.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(FedsynthError, match="compressed"):
        restore_site(tmp_path / "bomb", tmp_path / "new")
    assert command("restore", tmp_path / "bomb", tmp_path / "new") == 8


def test_a_table_of_contents_cannot_unfold_in_memory(config, tmp_path):
    """Even to learn what an archive is a backup of, nothing compressed is read."""
    import tracemalloc

    back_up_site(config, tmp_path / "backup")
    with zipfile.ZipFile(tmp_path / "backup") as held, zipfile.ZipFile(tmp_path / "bomb", "w") as copy:
        for name in held.namelist():
            table = name == "backup.json"
            content = held.read(name) + b" " * (2**28 * table)
            copy.writestr(name, content, zipfile.ZIP_DEFLATED if table else zipfile.ZIP_STORED)
    del content
    assert (tmp_path / "bomb").stat().st_size < 2**20
    for read in (
        kind_of,
        partial(restore_site, folder=tmp_path / "new"),
        partial(restore_server, folder=tmp_path / "new"),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(FedsynthError, match="compressed"):
                read(tmp_path / "bomb")
            assert tracemalloc.get_traced_memory()[1] < 2**24
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("text", ["site = 3", "[[site]]", "[site]\nstate = 3", ""])
def test_an_archive_whose_site_file_is_another_is_put_back_or_refused(config, tmp_path, text):
    back_up_site(config, tmp_path / "backup")

    def other(name: str, content: bytes) -> list[tuple[str, bytes]]:
        if name == "site.toml":
            return [(name, text.encode())]
        if name == "backup.json":
            contents = msgspec.json.decode(content, type=BackupContents)
            files = {**contents.files, "site.toml": hashlib.sha256(text.encode()).hexdigest()}
            return [(name, msgspec.json.encode(msgspec.structs.replace(contents, files=files)))]
        return [(name, content)]

    restore_site(rewritten(tmp_path / "backup", other, tmp_path / "odd"), tmp_path / "new")
    with pytest.raises(FedsynthError, match=r"site\.toml"):
        load_site_config(tmp_path / "new")


# ---------------------------------------------------------------------------------------------------------------------
# The server


def test_a_server_is_put_back_whole(tmp_path, capsys):
    import sqlite3

    root = tmp_path / "federation"
    for folder in ("state/first", "runs/first", "server"):
        (root / folder).mkdir(parents=True)
    (root / SECRET_FILE).write_text("ab" * 32)
    (root / SECRET_FILE).chmod(0o600)
    files = {"job.toml": "a", "state/first/transcript": "b", "state/seen.json": "c", "runs/first/run.toml": "d"}
    for name, text in {**files, "state/first/lock": ""}.items():
        (root / name).write_text(text)
    with sqlite3.connect(root / "server" / "superlink.db") as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE nodes (name)")
        database.execute("INSERT INTO nodes VALUES ('north')")
        database.commit()
        assert command("backup", root, tmp_path / "backup") == 0
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    assert command("restore", tmp_path / "backup", root) == 8
    assert "move it away" in capsys.readouterr().err
    assert command("restore", tmp_path / "backup", tmp_path / "new") == 0
    found = {path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert found == {*files, SECRET_FILE, "server/superlink.db"}
    assert {name: (tmp_path / "new" / name).read_text() for name in files} == files
    with sqlite3.connect(tmp_path / "new" / "server" / "superlink.db") as database:
        assert database.execute("SELECT name FROM nodes").fetchall() == [("north",)]


def test_a_backup_is_put_back_as_what_it_is_of(config, tmp_path):
    back_up_site(config, tmp_path / "backup")
    with pytest.raises(FedsynthError, match="is the backup of a site, not of a server"):
        restore_server(tmp_path / "backup", tmp_path / "new")
    assert command("restore", tmp_path / "backup", tmp_path / "new") == 0
    assert (tmp_path / "new" / "site.toml").is_file()
    (tmp_path / "text").write_text("no backup")
    assert command("restore", tmp_path / "text", tmp_path / "other") == 8
    assert not (tmp_path / "other").exists()
    assert command("backup", tmp_path, tmp_path / "third", "--with-rows") == 2
    with pytest.raises(FedsynthError, match=SECRET_FILE):
        back_up_server(config.folder, tmp_path / "server.backup")
