"""A site's file, its state on disk, and what `fedsynth deploy init`, `site join` and `site check` say about them."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.attacks.world import answer_in
from tests.command import fedsynth
from tests.contract.world import SCHEMA, random_table
from tests.world import request_of

from fedsynth.deploy import flower
from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.files.site import FileAnswerer
from fedsynth.deploy.host import rows as site_rows
from fedsynth.deploy.host.checks import check_site
from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.rows import RunRows, close_run, load_rows
from fedsynth.deploy.host.state import (
    IdleRuns,
    answer,
    create_state,
    make_node_key,
    open_account,
    open_site,
    site_secret,
    wait_until_due,
)
from fedsynth.deploy.roster import Member, Roster, to_text
from fedsynth.encoding import decode
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError, Unsupported
from fedsynth.federation.query import Counts, Query
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import AuditPosition, Reply, Request
from fedsynth.files import private_folder
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.book_file import BookFile, ClockRecord, RunRecord
from fedsynth.privacy.charge import Charge
from fedsynth.privacy.cost import ONE_ROW, Budget, Cost, Unit
from fedsynth.privacy.release import Gaussian
from fedsynth.rows import Table
from fedsynth.runs.job import Deployment, Job
from fedsynth.runs.state import load_coordinator
from fedsynth.schema import Categorical, Numeric, Schema

TEMPLATES = Path(flower.__file__).parent / "templates"
COORDINATOR = Keys(bytes(range(32)))
CONTENT: dict[str, dict[str, Any]] = {
    "site": {"name": "north"},
    "source": {"data": "rows.csv", "schema": "schema.toml", "rows_are_persons": True},
    "coordinator": {"key": COORDINATOR.public.hex()},
    "policy": {
        "budget": {"epsilon": 1, "delta": 1e-6},
        "per_run": {"epsilon": 1, "delta": 1e-6},
        "trusts": {"local": {}},
        "plans": "any",
    },
    "flower": {"superlink": "127.0.0.1:9"},
}
KEY = bytes(32)


def write(home: Path, **sections: dict[str, Any]) -> Path:
    """Write a complete site whose file has the given sections in place of the usual ones."""
    home.mkdir(exist_ok=True)
    SCHEMA.save(home / "schema.toml")
    rows(home, 50)
    (home / "site.toml").write_text(tomli_w.dumps({**CONTENT, **sections}))
    return home


def with_roster(home: Path, coordinator: Keys = COORDINATOR, /, **identities: str) -> Path:
    """Write the roster of these sites beside a site's file, signed by a coordinator."""
    members = tuple(Member(name, key, f"ecdsa-sha2-nistp384 {name}") for name, key in sorted(identities.items()))
    (home / "roster.toml").write_text(to_text(Roster("0" * 64, members).signed(coordinator)))
    return home


def rows_of(config: SiteConfig, run: str = "run") -> Table:
    """Return the rows that a run reads, which has asked something."""
    with open_site(config).rows.opened(run) as found:
        assert isinstance(found, Table)
        return found


def ready_site(home: Path, **sections: dict[str, Any]) -> SiteConfig:
    """Return a complete site with its account."""
    config = load_site_config(write(home, **sections))
    create_state(config)
    return config


def ask(
    config: SiteConfig,
    run: str = "run",
    step: int = 0,
    query: Query | None = None,
    *,
    rho: float = 1e-3,
    trust: str = "local",
) -> Reply:
    """Put a question to a deployed site, as a transport does, and return its reply."""
    request = request_of(
        query or Counts.of(len(SCHEMA.columns), [(0, 1)]),
        run=run,
        step=step,
        verb="sum",
        release=Gaussian(rho),
        trust=trust,
        schema=SCHEMA.digest,
        unit=ONE_ROW,
        neighbours="add-remove",
    )
    message = Message.of("north", Keys(site_secret(config)).identity, request, COORDINATOR, AuditPosition())
    (data,) = answer(config, [message.data]).replies
    return message.reply(data)


def rows(home: Path, count: int, seed: int = 0) -> None:
    decode(SCHEMA, random_table(count, seed), np.random.default_rng(0)).to_csv(home / "rows.csv", index=False)


def certificate(path: Path, days: int, begins: int = -1) -> None:
    """Write a certificate that is valid for some days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + datetime.timedelta(days=min(begins, days - 1)))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))


# ---------------------------------------------------------------------------------------------------------------------
# site.toml


def test_a_file_says_what_a_site_is(tmp_path):
    policy = {
        "budget": {"epsilon": 3.0, "delta": 1e-6},
        "per_run": {"epsilon": 1, "delta": 1e-7},
        "trusts": {"local": {}, "trusted": {}},
        "coordinator_sees_exact_counts": True,
        "size_is_public": True,
        "plans": "any",
        "unit": {"rows": 3},
        "answer_every": 0.5,
        "keep_runs_days": 7,
    }
    config = load_site_config(with_roster(write(tmp_path / "site", policy=policy), north="cd" * 32, south="ab" * 32))
    assert (config.name, config.superlink) == ("north", "127.0.0.1:9")
    assert config.data.file == tmp_path / "site" / "rows.csv"
    assert config.state == tmp_path / "site" / "state"
    assert config.policy.budget == Budget(3.0, 1e-6)
    assert config.policy.per_run == Budget(1.0, 1e-7)
    assert set(config.policy.trusts) == {"local", "trusted"}
    assert config.policy.size_is_public
    assert not config.policy.exact
    assert (config.policy.unit, config.policy.any_plan) == (Unit(rows=3), True)
    assert (config.policy.answer_every, config.policy.keep_runs_days) == (0.5, 7)
    assert config.coordinator == COORDINATOR.public
    assert config.peers == {"north": bytes.fromhex("cd" * 32), "south": bytes.fromhex("ab" * 32)}
    assert load_site_config(tmp_path / "site" / "site.toml") == config


@pytest.mark.parametrize(
    ("section", "content", "error", "says"),
    [
        ("sight", {}, FedsynthError, r"site.toml: sight is unknown; did you mean 'site'"),
        ("coordinator", {}, FedsynthError, r"\[coordinator\] key is missing"),
        ("coordinator", {"key": "ab" * 63}, FedsynthError, "128 hexadecimal digits"),
        ("coordinator", {"key": "x" * 128}, FedsynthError, "128 hexadecimal digits"),
        (
            "source",
            {"data": "rows.csv", "schema": "s", "counted": True, "person": "p"},
            FedsynthError,
            "limits the rows",
        ),
        ("source", {**CONTENT["source"], "person": "p"}, FedsynthError, "delete one"),
        ("source", {**CONTENT["source"], "rows_are_persons": "yes"}, FedsynthError, "true or false"),
        ("source", {**CONTENT["source"], "counted": True, "streamed": True}, FedsynthError, "not both"),
        ("source", {**CONTENT["source"], "counted": True}, FedsynthError, "write streamed = true"),
        ("source", {"counted": "postgresql://h/d?table=t", "data": "t", "schema": "s"}, FedsynthError, "true or false"),
        ("site", {"name": "north", "nane": "x"}, FedsynthError, r"\[site\] nane is unknown; did you mean 'name'"),
        ("site", {}, FedsynthError, r"site.toml: \[site\] name is missing"),
        ("site", {"name": 7}, FedsynthError, r"\[site\] name: expected text, not 7"),
        ("site", {"name": "no/rth"}, FedsynthError, "is not a valid site name"),
        ("site", {"name": "admin"}, InvalidParameter, r"site.toml: \[site\] name: 'admin' cannot be a site's name"),
        ("site", {"name": "north\n"}, InvalidParameter, "is not a valid site name"),
        (
            "flower",
            {"superlink": "x; } evil { :443"},
            InvalidParameter,
            r"\[flower\] superlink: .* is not of the form HOST:PORT",
        ),
        ("flower", {"superlink": "fed.example.org"}, InvalidParameter, "HOST:PORT"),
        ("peers", {"south": "ab" * 32}, FedsynthError, "peers is unknown"),
        ("source", {"data": "rows.csv"}, FedsynthError, r"\[source\] schema is missing"),
        ("source", {**CONTENT["source"], "data": "nosuch://h/d"}, Unsupported, "no source for"),
        (
            "source",
            {**CONTENT["source"], "immutable": True},
            InvalidParameter,
            r"\[source\]: immutable = true .* delete",
        ),
        ("source", {**CONTENT["source"], "data": "postgresql://u:pass@h/d?table=t"}, FedsynthError, "password"),
        ("policy", {"budget": {"epsilon": 1.0, "delta": 1e-6}}, InvalidParameter, "trusts"),
        (
            "policy",
            {**CONTENT["policy"], "exact": "yes"},
            InvalidParameter,
            r"\[policy\] exact: expected true",
        ),
        ("policy", {**CONTENT["policy"], "trusts": {"nobody": {}}}, Unsupported, "nobody"),
        ("policy", {**CONTENT["policy"], "trusts": {"trusted": {"confidential": False}}}, InvalidParameter, "confid"),
        ("policy", {**CONTENT["policy"], "budget": {"epsilon": -1.0, "delta": 1e-6}}, InvalidParameter, "positive"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, section, content, error, says):
    home = write(tmp_path / "site", **{section: content})
    with pytest.raises(error, match=says) as raised:
        load_site_config(home)
    assert "pass@" not in str(raised.value)


def test_no_file_and_no_toml(tmp_path):
    with pytest.raises(FedsynthError, match="site join"):
        load_site_config(tmp_path)
    (tmp_path / "site.toml").write_text("name = ")
    with pytest.raises(FedsynthError, match="not TOML"):
        load_site_config(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# State


def test_state_is_created_once_and_is_the_owners_alone(tmp_path):
    config = load_site_config(write(tmp_path / "site"))
    previous = os.umask(0)
    try:
        assert create_state(config)
        assert ask(config).code == "answered"
    finally:
        os.umask(previous)
    secret = site_secret(config)
    assert len(secret) == 32
    modes = {path.name: path.stat().st_mode & 0o777 for path in config.state.iterdir()}
    assert modes == {"account.sqlite": 0o600, "table.fedsynth": 0o600, "rows": 0o700}
    assert {path.stat().st_mode & 0o777 for path in config.copies.glob("*.rows")} == {0o600}
    assert config.state.stat().st_mode & 0o777 == 0o700
    assert not create_state(config)
    assert site_secret(config) == secret
    other = ready_site(tmp_path / "other")
    assert site_secret(other) != secret


def test_an_account_that_is_gone_or_open_to_others_or_not_ours_is_an_error(tmp_path):
    config = load_site_config(write(tmp_path / "site"))
    with pytest.raises(FedsynthError, match="restore it from the backup"):
        open_site(config)
    assert not config.account.exists()
    create_state(config)
    config.account.chmod(0o640)
    with pytest.raises(FedsynthError, match="chmod"):
        open_site(config)
    config.account.unlink()
    Book(config.account)
    for _ in range(2):  # and stays one: no secret is made up on the way
        with pytest.raises(FedsynthError, match="holds no secret"):
            open_site(config)


def test_spending_outlives_the_process_and_the_same_question_is_free(tmp_path):
    config = ready_site(tmp_path / "site")
    first, second = ask(config), ask(config)
    assert first.code == "answered"
    assert answer_in(first.data) == answer_in(second.data)
    assert open_account(config).spent().rho == pytest.approx(0.001)


def test_a_roster_with_another_key_of_this_very_site_is_refused(tmp_path):
    config = ready_site(tmp_path / "site")
    own = Keys(site_secret(config)).identity.hex()
    open_site(load_site_config(with_roster(tmp_path / "site", north=own, south="ab" * 32)))
    with pytest.raises(FedsynthError, match="not this site's own"):
        open_site(load_site_config(with_roster(tmp_path / "site", north="ab" * 32)))
    with pytest.raises(FedsynthError, match="names no site north"):
        load_site_config(with_roster(tmp_path / "site", south="ab" * 32))
    with pytest.raises(FedsynthError, match="not signed by the coordinator"):
        load_site_config(with_roster(tmp_path / "site", Keys(b"x" * 32), north=own))


def test_replies_are_due_at_whole_multiples_of_the_interval():
    def left_at(elapsed: float, every: float) -> float:
        now = [100.0 + elapsed]
        wait_until_due(100.0, every, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
        return now[0] - 100.0

    for elapsed, due in ((0.0, 1.0), (0.001, 1.0), (0.999, 1.0), (1.0, 1.0), (1.001, 2.0), (7.3, 8.0)):
        assert left_at(elapsed, 1.0) == pytest.approx(due)
    assert left_at(0.7, 0.5) == pytest.approx(1.0)
    assert left_at(0.7, 0.0) == pytest.approx(0.7)


def test_a_sleep_that_ends_early_is_gone_on_with():
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += min(seconds, 0.25)

    wait_until_due(0.0, 1.0, lambda: now[0], sleep)
    assert (now[0], len(slept)) == (1.0, 4)


# ---------------------------------------------------------------------------------------------------------------------
# The rows of a run


def test_a_run_reads_the_rows_that_it_began_with_whatever_becomes_of_the_source(tmp_path):
    home = tmp_path / "site"
    config = ready_site(home)
    assert ask(config).code == "answered"
    first, pinned = rows_of(config), open_account(config).pinned("run")
    rows(home, 50, seed=1)
    assert ask(config, "another").code == "answered"
    assert rows_of(config).digest == first.digest != rows_of(config, "another").digest
    assert open_account(config).pinned("run") == pinned != open_account(config).pinned("another")
    assert len(list(config.copies.glob("*.rows"))) == 2
    (home / "rows.csv").unlink()
    assert ask(config, step=1).code == "answered"
    assert ask(config, "third").code == "failed"  # it asked nothing yet, and there is no source now
    assert first.digest not in str(list(config.copies.iterdir()))  # a plain digest would confirm guesses


def missing_file(config: SiteConfig) -> None:
    (config.folder / "rows.csv").unlink()


def missing_column(config: SiteConfig) -> None:
    (config.folder / "rows.csv").write_text("c0,c1\nv0,v0\n")


@pytest.mark.parametrize("breaks", [missing_file, missing_column])
def test_a_site_without_its_source_is_charged_nothing_and_answers_when_it_is_back(tmp_path, breaks):
    config = ready_site(tmp_path / "site")
    breaks(config)
    assert ask(config).code == "failed"
    assert open_account(config).spent().rho == 0
    rows(config.folder, 50)
    assert ask(config).code == "answered"
    breaks(config)
    assert ask(config, step=1).code == "answered"  # the run has its copy
    assert ask(config, "another").code == "failed"
    assert open_account(config).spent().rho == pytest.approx(0.002)


def older_export(config: SiteConfig) -> None:
    """Put an older export without a column in the file's place, with its own times, as ``cp -p`` does."""
    file = config.folder / "rows.csv"
    file.write_text("c0,c1\nv0,v0\n")
    os.utime(file, ns=(1, 1))


def folder_in_its_place(config: SiteConfig) -> None:
    missing_file(config)
    (config.folder / "rows.csv").mkdir()


def no_header(config: SiteConfig) -> None:
    (config.folder / "rows.csv").write_bytes(b"")


def no_person(config: SiteConfig) -> None:
    file = config.folder / "rows.csv"
    file.write_text("".join(line.rpartition(",")[0] + "\n" for line in file.read_text().splitlines()))


def half_a_parquet_file(config: SiteConfig) -> None:
    file = config.folder / "rows.parquet"
    file.write_bytes(file.read_bytes()[:-20])


def parquet_lacking_a_column(config: SiteConfig) -> None:
    file = config.folder / "rows.parquet"
    before = file.stat()
    pd.read_parquet(file).drop(columns="c2").to_parquet(file, index=False)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def copied(config: SiteConfig, broken: bool) -> None:
    """Take away, or put back, what a run reads: the source, from before the break."""
    for file in ("rows.csv", "rows.parquet"):
        if broken:
            shutil.copyfile(config.folder / file, config.folder / f"{file}.kept")
            continue
        if (config.folder / file).is_dir():
            (config.folder / file).rmdir()
        shutil.copyfile(config.folder / f"{file}.kept", config.folder / file)


@pytest.mark.parametrize("how", ["copied", "streamed"])
@pytest.mark.parametrize(
    "breaks",
    [
        missing_file,
        older_export,
        folder_in_its_place,
        no_header,
        no_person,
        half_a_parquet_file,
        parquet_lacking_a_column,
    ],
)
def test_a_table_that_cannot_be_opened_costs_nothing_though_its_rows_are_cached(tmp_path, breaks, how):
    """Looked at before every charge: that the cache is newer than the file tells nothing of what the file is now."""
    if how == "streamed" and breaks is no_person:
        pytest.skip("streamed rows have no limit on a person's")
    parquet = breaks in (half_a_parquet_file, parquet_lacking_a_column)
    source: dict[str, Any] = {"data": "rows.parquet" if parquet else "rows.csv", "schema": "schema.toml"}
    source |= {"person": "patient"} if breaks is no_person else {"rows_are_persons": True}
    config = ready_site(tmp_path / "site", source={**source, "streamed": how == "streamed"})
    frame = decode(SCHEMA, random_table(50, 0), np.random.default_rng(0)).assign(patient=range(50))
    frame.to_csv(config.folder / "rows.csv", index=False)
    frame.to_parquet(config.folder / "rows.parquet", index=False)
    assert ask(config, "earlier").code == "answered"
    copied(config, broken=True)
    breaks(config)
    for _ in range(2):
        assert ask(config).code == "failed"
    assert open_account(config).spent().rho == pytest.approx(0.001)
    copied(config, broken=False)
    assert ask(config).code == "answered"
    assert open_account(config).spent().rho == pytest.approx(0.002)


@pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="to give up root's rights")
def test_a_table_without_the_right_to_read_it_costs_nothing(tmp_path):
    config = ready_site(tmp_path / "site")
    assert ask(config, "earlier").code == "answered"
    (config.folder / "rows.csv").chmod(0)
    script = (
        "import sys; from pathlib import Path; from fedsynth.deploy.host.config import load_site_config; "
        "from tests.deploy.test_site_config import ask; print(ask(load_site_config(Path(sys.argv[1]))).code)"
    )
    limited = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    done = subprocess.run(
        [*limited, sys.executable, "-c", script, str(config.folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "failed\n", done.stderr
    assert open_account(config).spent().rho == pytest.approx(0.001)


def test_a_question_whose_rows_cannot_be_copied_is_charged_once_and_failed_for_good(tmp_path):
    """Its source was opened before the charge; whatever happens after it, the coordinator learns one word, once."""
    config = ready_site(tmp_path / "site")
    private_folder(config.copies)
    (config.copies / "lock").mkdir()
    first = ask(config)
    price = open_account(config).spent()
    assert first.code == "void"
    assert price.rho == pytest.approx(0.001)
    assert answer_in(ask(config).data) == answer_in(first.data)
    (config.copies / "lock").rmdir()
    assert answer_in(ask(config).data) == answer_in(first.data)
    assert open_account(config).spent() == price
    assert open_account(config).charges()[0]["replays"] == 2
    assert ask(config, step=1).code == "answered"  # another question is charged, and answered from the rows of now
    assert open_account(config).spent().rho == pytest.approx(0.002)
    assert open_account(config).verify().wrong == ""


def test_a_message_that_is_not_charged_opens_no_rows(tmp_path, monkeypatch):
    """Neither what the policy refuses, nor what the account does, nor a repetition."""
    config = ready_site(tmp_path / "site")
    assert ask(config).code == "answered"
    monkeypatch.setattr(site_rows, "load_rows", lambda *_: pytest.fail("looked at"))
    monkeypatch.setattr(site_rows, "_read_copy", lambda *_: pytest.fail("looked at"))
    assert ask(config).code == "answered"
    assert ask(config, "other", rho=1e6).code == "spent"
    assert ask(config, "other", trust="nobody").code == "refused"
    close_run(config, open_account(config), "run")
    assert ask(config, step=1).code == "refused"


def test_runs_over_the_same_rows_share_a_copy_and_refused_runs_leave_none(tmp_path):
    config = ready_site(tmp_path / "site")
    for k in range(5):
        assert ask(config, f"run-{k}").code == "answered"
    assert len(list(config.copies.glob("*.rows"))) == 1
    key = Keys(site_secret(config)).identity
    stranger = Message.of("north", key, ask_request("stranger"), Keys(KEY), AuditPosition())
    before = sorted(config.copies.iterdir())
    (data,) = answer(config, [stranger.data]).replies
    assert stranger.reply(data).code == "lost"
    assert sorted(config.copies.iterdir()) == before


def ask_request(run: str) -> Request:
    fields = {"run": run, "step": 0, "verb": "sum", "release": Gaussian(1e-3), "trust": "local"}
    terms = {"schema": SCHEMA.digest, "unit": ONE_ROW, "neighbours": "add-remove"}
    return request_of(Counts.of(len(SCHEMA.columns), [(0,)]), **fields, **terms)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "exposed", "another"])
def test_a_run_whose_copy_is_not_what_it_was_gets_nothing_and_says_nothing(tmp_path, damage):
    config = ready_site(tmp_path / "site")
    assert ask(config).code == "answered"
    (copy,) = config.copies.glob("*.rows")
    data = bytearray(copy.read_bytes())
    match damage:
        case "gone":
            copy.unlink()
        case "cut":
            copy.write_bytes(data[: len(data) // 2])
        case "flipped":
            data[len(data) // 2] ^= 1
            copy.write_bytes(data)
        case "exposed":
            copy.chmod(0o644)
        case "another":
            Schema(SCHEMA.columns, missing_values=("-",)).save(config.schema)
    reply = ask(config, step=1)
    seen = damage in ("gone", "exposed")  # before a row is read, and so before the charge
    assert reply.code == {"another": "refused", "gone": "failed", "exposed": "failed"}.get(damage, "void")
    if damage != "another":
        assert "the rows of run run are " in list(open_account(config).export())[-1]
        assert ask(config, "later").code == "answered"  # and what is damaged is made anew for it
        assert ask(config, step=2).code == "answered"  # by the same content, the old run too
        again = ask(config, step=1)
        assert again.code == ("answered" if seen else "void")
        assert seen or answer_in(again.data) == answer_in(reply.data)  # charged, and failed for good
        assert open_account(config).spent("run").rho == pytest.approx(0.003)
    assert open_account(config).verify().wrong == ""


def test_a_closed_run_is_forgotten_but_for_what_it_spent(tmp_path):
    config = ready_site(tmp_path / "site")
    assert ask(config).code == ask(config, step=1).code == "answered"
    account = open_account(config)
    assert close_run(config, account, "run") == 2
    assert list(config.copies.glob("*.rows")) == []
    assert ask(config).code == ask(config, step=2).code == "refused"
    assert list(config.copies.glob("*.rows")) == []
    assert account.spent("run").rho == pytest.approx(0.002)
    assert ask(config, "other").code == "answered"
    with pytest.raises(InvalidParameter, match="no run 'nothing'"):
        close_run(config, account, "nothing")


def test_runs_that_ask_nothing_more_are_closed_and_their_copies_deleted(tmp_path):
    config = ready_site(tmp_path / "site")
    assert ask(config, "first").code == "answered"
    (copy,) = config.copies.glob("*.rows")
    grow_old(config, "first", 15)
    rows(config.folder, 50, seed=1)
    assert ask(config, "second").code == "answered"
    assert [run for run, _ in open_account(config).open_runs()] == ["second"]
    assert not copy.exists()
    assert ask(config, "first").code == "refused"


def grow_old(config: SiteConfig, run: str, days: float) -> None:
    """Let the last question of a run be so many days old, as the account counts them."""
    with BookFile(str(config.account)).transaction() as records:
        found = records.get(RunRecord, run)
        assert found is not None
        now = records.get(ClockRecord)
        assert now is not None
        records.put(found._replace(used=now.age - days * 86400))


def open_runs(config: SiteConfig) -> list[str]:
    """Return the names of a site's open runs."""
    return [run for run, _ in open_account(config).open_runs()]


@pytest.mark.parametrize("way", [{}, {"streamed": True}])
def test_every_question_closes_the_other_runs_that_are_idle(tmp_path, way):
    config = ready_site(tmp_path / "site", source={**CONTENT["source"], **way})
    for run in ("old", "young", "asking"):
        assert ask(config, run).code == "answered"
    for run, days in (("old", 15), ("young", 13), ("asking", 15)):
        grow_old(config, run, days)
    assert ask(config, "asking").code == "answered"  # a repetition is no new question
    assert open_runs(config) == ["old", "young", "asking"]
    grow_old(config, "asking", 16)
    assert ask(config, "asking", step=1).code == "answered"
    assert open_runs(config) == ["young", "asking"]
    assert ask(config, "old").code == "refused"
    (closed,) = (row for row in map(json.loads, open_account(config).export()) if row["outcome"] == "closed")
    assert (closed["run"], closed["questions"]) == ("old", 1)


def serve_nothing(config: SiteConfig, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``fedsynth site serve`` look for a message once, where there is none."""
    if transport == "once":
        FileAnswerer(config.folder, config.folder).answer_once()
        return
    if transport == "flower":
        pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
        from fedsynth.deploy.flower.node import FlowerNode

        make_node_key(config.key)
        config.root_certificates.write_text(Authority.create().text)
        answerer: Any = FlowerNode(config.folder, replace(config, superlink="127.0.0.1:9"))
    else:
        answerer = FileAnswerer(config.folder, config.folder)
    monkeypatch.setattr(answerer._stopped, "wait", lambda timeout: answerer.stop())
    answerer.serve()


@pytest.mark.parametrize("transport", ["flower", "files", "once"])
@pytest.mark.parametrize("way", [{}, {"streamed": True}])
def test_a_site_that_nobody_asks_closes_idle_runs_when_it_begins_to_wait(tmp_path, monkeypatch, way, transport):
    config = ready_site(tmp_path / "site", source={**CONTENT["source"], **way})
    assert ask(config, "old").code == "answered"
    rows(config.folder, 50, seed=1)
    assert ask(config, "young").code == "answered"
    kept = open_account(config).pinned("young")
    grow_old(config, "old", 15)
    assert len(list(config.copies.glob("*.rows"))) == 2 * (not way)
    serve_nothing(config, transport, monkeypatch)
    assert open_runs(config) == ["young"]
    assert [copy.stem for copy in config.copies.glob("*.rows")] == [kept] * (not way)


@pytest.mark.parametrize("refusal", ["signature", "certificate", "outage"])
def test_a_site_that_the_server_refuses_for_its_clock_names_the_clock(tmp_path, monkeypatch, caplog, refusal):
    """Flower's signatures hold for seconds, a certificate for a year: its authentication refuses before all else."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    import httpx

    from fedsynth.deploy.flower.node import FlowerNode

    def refused(*_: object) -> None:
        request = httpx.Request("POST", "https://127.0.0.1:9")
        if refusal == "signature":
            raise httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))
        if refusal == "outage":
            raise httpx.ConnectError("Connection refused", request=request)
        fault = ssl.SSLCertVerificationError("certificate verify failed")
        fault.verify_message = "certificate has expired"
        raise httpx.ConnectError("certificate verify failed", request=request) from fault

    config = ready_site(tmp_path / "site")
    monkeypatch.setattr(FlowerNode, "_activate", refused)
    serve_nothing(config, "flower", monkeypatch)
    assert ("or the clock of this host" in caplog.text) == (refusal != "outage")


@pytest.mark.parametrize("seen", ["status 400", "expired", "alert", "outage"])
@pytest.mark.parametrize("days", [90, -1])
def test_a_sites_own_certificate_that_has_ended_is_not_blamed_on_the_server(tmp_path, days, seen):
    """nginx answers such a site with HTTP status 400; a forwarder shows it the same certificate as the server's."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    import httpx

    from fedsynth.deploy.flower.node import _reason

    config = ready_site(tmp_path / "site")
    certificate(config.certificate, days, -30)
    request = httpx.Request("POST", "https://127.0.0.1:9")
    error: httpx.HTTPError = httpx.ConnectError("refused")
    if seen == "status 400":
        error = httpx.HTTPStatusError("400", request=request, response=httpx.Response(400, request=request))
    elif seen == "expired":
        error.__cause__ = ssl.SSLCertVerificationError("certificate verify failed")
        error.__cause__.verify_message = "certificate has expired"
    elif seen == "alert":
        error.__cause__ = ssl.SSLError("tlsv1 alert certificate expired")
    said = _reason(error, config, 30.0)
    own = days < 0 and seen != "outage"
    assert said.startswith(f"this site's own certificate, {config.certificate}, ended on ") == own
    assert ("`fedsynth site join` with the invitation" in said) == own
    assert ("the clock of this host" in said) == (own or seen == "expired")


def test_what_a_server_answers_that_is_no_message_ends_no_site(tmp_path, caplog):
    """A head without its parts raised out of the loop, so that a SuperLink could end the process of a site."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
    from flwr.proto.message_pb2 import Message as Head

    from fedsynth.deploy.flower.node import FlowerNode

    class Hostile:
        def ActivateNode(self, request: object) -> ActivateNodeResponse:  # noqa: N802  (of Flower)
            return ActivateNodeResponse(node_id=1)

        def PullMessages(self, request: object) -> PullMessagesResponse:  # noqa: N802  (of Flower)
            return PullMessagesResponse(messages_list=[Head()])

    config = ready_site(tmp_path / "site")
    make_node_key(config.key)
    node: Any = FlowerNode(config.folder, config)
    assert node._look(Hostile(), None) is False
    assert "trying again" in caplog.text


class Reachable:
    """What a SuperLink tells a node, unless there is an ``outage``; ``intervals`` are those between its heartbeats."""

    def __init__(self) -> None:
        self.outage = False
        self.intervals: list[float] = []

    def ActivateNode(self, request: Any) -> Any:  # noqa: N802  (of Flower)
        from flwr.proto.fleet_pb2 import ActivateNodeResponse

        self.intervals.append(request.heartbeat_interval)
        return ActivateNodeResponse(node_id=1)

    def PullMessages(self, request: object) -> Any:  # noqa: N802  (of Flower)
        import httpx
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        if self.outage:
            raise httpx.ConnectError("Connection refused")
        return PullMessagesResponse()

    def SendNodeHeartbeat(self, request: Any) -> None:  # noqa: N802  (of Flower)
        self.intervals.append(request.heartbeat_interval)


def test_a_node_is_connected_again_as_soon_as_an_outage_is_over(tmp_path):
    """Before, the SuperLink had it as away until its next heartbeat, which may take a minute."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from fedsynth.deploy.flower.node import FlowerNode

    config = ready_site(tmp_path / "site")
    make_node_key(config.key)
    node: Any = FlowerNode(config.folder, config)
    superlink: Any = Reachable()
    for superlink.outage in (False, False, True, True, False, False):
        assert node._look(superlink, None) is False
    assert superlink.intervals == [15.0, 15.0]  # when it was activated, and after the outage


def test_a_site_that_served_before_its_admission_takes_the_pace_of_its_roster(tmp_path):
    """Before, it asked for ever as often as the only site would."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from fedsynth.deploy.flower.node import FlowerNode

    config = ready_site(tmp_path / "site")
    make_node_key(config.key)
    node: Any = FlowerNode(config.folder, config)
    identities = {f"site{at}": f"{at:064x}" for at in range(1, 100)}
    with_roster(config.folder, north=Keys(KEY).identity.hex(), **identities)
    superlink: Any = Reachable()
    node._look(superlink, None)
    assert superlink.intervals == [50.0]


def test_an_outage_is_one_line_in_a_sites_log_though_its_details_change(tmp_path, monkeypatch, caplog):
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    import httpx

    from fedsynth.deploy.flower.node import FlowerNode

    node = FlowerNode(tmp_path, replace(ready_site(tmp_path / "site"), superlink="127.0.0.1:9"))
    for details in ("Connection reset by peer", "Connection refused", "Connection reset by peer"):
        node._tell(httpx.ConnectError(details))
    assert [record.getMessage() for record in caplog.records] == [
        "no SuperLink answers at 127.0.0.1:9 (Connection reset by peer); trying again"
    ]


def test_idle_runs_are_looked_for_once_an_hour_and_errors_end_nothing(tmp_path, caplog):
    config = ready_site(tmp_path / "site")
    assert ask(config, "old").code == "answered"
    now = [0.0]
    idle = IdleRuns(config.folder, lambda: now[0])
    idle.close()
    grow_old(config, "old", 15)
    now[0] = 3599.0
    idle.close()
    assert open_runs(config) == ["old"]
    away = config.account.rename(tmp_path / "away")
    now[0] = 3600.0
    idle.close()
    assert "idle runs could not be closed" in caplog.text
    away.rename(config.account)
    now[0] = 7200.0
    idle.close()
    assert open_runs(config) == []


def test_a_person_has_no_more_rows_than_the_unit_says_whatever_else_the_table_holds(tmp_path):
    home = tmp_path / "site"
    policy = {**CONTENT["policy"], "unit": {"rows": 2}}
    config = ready_site(home, source={"data": "rows.csv", "schema": "schema.toml", "person": "patient"}, policy=policy)
    persons = ["ann"] * 5 + ["bob"] * 2 + [""] * 3 + ["carl"]
    kinds = [f"v0,v0,v{k % 4},v{k % 5}" for k in range(len(persons))]
    (home / "rows.csv").write_text("c0,c1,c2,c3,patient\n" + "\n".join(map(",".join, zip(kinds, persons, strict=True))))
    table = load_rows(config, SCHEMA, KEY)
    assert (len(table), table.left_out) == (5, 0)
    assert load_rows(config, SCHEMA, KEY).digest == table.digest
    with (home / "rows.csv").open("a") as file:
        file.write("\nv1,v1,v1,v1,dora")
    assert len(load_rows(config, SCHEMA, KEY)) == 6
    (home / "rows.csv").write_text("c0,c1,c2,c3\nv0,v0,v0,v0\n")
    with pytest.raises(SchemaError, match="'patient'"):
        load_rows(config, SCHEMA, KEY)


@pytest.mark.parametrize("declared", [{}, {"rows_are_persons": False}])
def test_a_site_answers_nothing_until_its_steward_says_who_a_person_is(tmp_path, declared):
    source = {"data": "rows.csv", "schema": "schema.toml"}
    config = ready_site(tmp_path / "site", source={**source, **declared})
    rows(config.folder, 50)
    code, found = check(config.folder)
    assert code == 8
    assert "who a person is" in found["rows"][1]
    assert "rows_are_persons = true" in found["rows"][1]
    with pytest.raises(FedsynthError, match="who a person is"):
        RunRows(config, SCHEMA, open_account(config), KEY).require("run")


def test_which_rows_of_a_person_are_kept_is_the_sites_secret(tmp_path):
    home = tmp_path / "site"
    config = ready_site(home, source={"data": "rows.csv", "schema": "schema.toml", "person": "patient"})
    lines = [f"v0,v0,v0,v{k % 5},p{k // 5}" for k in range(100)]
    (home / "rows.csv").write_text("c0,c1,c2,c3,patient\n" + "\n".join(lines))
    digests = {load_rows(config, SCHEMA, bytes([k]) * 32).digest for k in range(4)}
    assert len(digests) == 4


# ---------------------------------------------------------------------------------------------------------------------
# The cache of encoded rows


def test_rows_are_read_again_exactly_when_they_changed(tmp_path, monkeypatch):
    home = write(tmp_path / "site")
    config = load_site_config(home)
    create_state(config)
    reads = []
    read = site_rows._read

    def counted(*of: Any, **options: Any) -> Any:
        reads.append(of)
        return read(*of, **options)

    monkeypatch.setattr(site_rows, "_read", counted)
    first = load_rows(config, SCHEMA, KEY)
    assert first.digest == random_table(50, 0).digest
    load_rows(config, SCHEMA, KEY)  # young: known by its content
    os.utime(home / "rows.csv", ns=(1, 1))
    load_rows(config, SCHEMA, KEY)  # touched: likewise
    assert len(reads) == 1
    rows(home, 50, seed=1)
    os.utime(home / "rows.csv", ns=(1, 1))  # same size and time, other rows
    assert load_rows(config, SCHEMA, KEY).digest == random_table(50, 1).digest
    assert len(reads) == 2
    config.cache.write_bytes(b"damaged")
    assert load_rows(config, SCHEMA, KEY).digest == random_table(50, 1).digest
    other = Schema(SCHEMA.columns, missing_values=("-",))
    assert load_rows(config, other, KEY).schema.digest == other.digest
    assert len(reads) == 4


def test_a_file_at_rest_is_not_even_hashed(tmp_path, monkeypatch):
    config = load_site_config(write(tmp_path / "site"))
    create_state(config)
    monkeypatch.setattr(site_rows, "_REST", 10**7)
    time.sleep(0.05)
    expected = load_rows(config, SCHEMA, KEY).digest
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed"))
    assert load_rows(config, SCHEMA, KEY).digest == expected


def test_numbers_survive_the_copy(tmp_path):

    schema = Schema((Categorical("a", ("x", "y")), Numeric("b", 0, 10, bins=4, missing=True)))
    config = load_site_config(write(tmp_path / "site"))
    create_state(config)
    (config.folder / "rows.csv").write_text("a,b\nx,1.25\ny,\nx,9\n")
    first, second = (load_rows(config, schema, KEY) for _ in range(2))
    assert first.digest == second.digest
    np.testing.assert_array_equal(second.numbers[1], [1.25, np.nan, 9.0])


def test_rows_that_do_not_fit_are_left_out_and_a_source_that_is_not_there_is_named(tmp_path):
    home = write(tmp_path / "site")
    config = load_site_config(home)
    create_state(config)
    (home / "rows.csv").write_text("c0,c1,c2,c3\nv0,v0,v0,v0\nv0,v0,v0,zzz\n")
    for _ in range(2):
        table = load_rows(config, SCHEMA, KEY)
        assert (len(table), table.left_out) == (1, 1)
    (home / "rows.csv").write_text("c0,c1\nv0,v0\n")
    with pytest.raises(SchemaError, match="c2"):
        load_rows(config, SCHEMA, KEY)
    (home / "rows.csv").unlink()
    with pytest.raises(FedsynthError, match="is missing"):
        load_rows(config, SCHEMA, KEY)


def test_a_damaged_cache_is_made_anew_and_never_an_error(tmp_path):
    """150 cuts and flips anywhere in the file: the rows are right each time."""
    config = ready_site(tmp_path / "site")
    expected = load_rows(config, SCHEMA, KEY).digest
    whole, rng = config.cache.read_bytes(), np.random.default_rng(0)
    for at in rng.integers(len(whole), size=150).tolist():
        damaged = bytearray(whole[:at]) if at % 2 else bytearray(whole)
        if not at % 2:
            damaged[at] ^= 1 << int(rng.integers(8))
        config.cache.write_bytes(damaged)
        assert load_rows(config, SCHEMA, KEY).digest == expected
    assert config.cache.read_bytes()[:16] == whole[:16]


def test_a_file_that_is_being_written_is_not_taken(tmp_path, monkeypatch):
    home = write(tmp_path / "site")
    config = load_site_config(home)
    create_state(config)
    read = site_rows._read

    def slowly(*of: Any, **options: Any) -> Any:
        table = read(*of, **options)
        with (home / "rows.csv").open("a") as file:
            file.write("v0,v0,v0,v0\n")
        return table

    monkeypatch.setattr(site_rows, "_read", slowly)
    with pytest.raises(FedsynthError, match="changed while it was read"):
        load_rows(config, SCHEMA, KEY)


# ---------------------------------------------------------------------------------------------------------------------
# Commands


def check(home: Path) -> tuple[int, dict[str, Any]]:
    done = fedsynth("site", "check", home, "--json")
    found = json.loads(done.stdout)
    return done.returncode, {one["name"]: (one["code"], f"{one['found']}; {one['mend']}") for one in found["checks"]}


def test_a_site_from_nothing_to_ready_and_what_is_wrong_on_the_way(tmp_path):
    SCHEMA.save(tmp_path / "agreed.toml")
    budget = ("--epsilon", "1", "--delta", "1e-6")
    folder = tmp_path / "federation"
    named = ("--schema", tmp_path / "agreed.toml", "--sites", "north,south")
    done = fedsynth("deploy", "init", folder, *named, *budget, "--json")
    assert done.returncode == 0, done.stderr
    job = Job.load(folder / "job.toml")
    assert job.deployment is not None
    assert (job.deployment.sites, job.method, job.trust, job.epsilon) == (("north", "south"), "auto", "local", 1.0)
    app = tomllib.loads((folder / "app" / "pyproject.toml").read_text())
    assert app["project"]["dependencies"] == []
    assert set(app["tool"]["flwr"]["app"]["components"].values()) == {"fedsynth.deploy.flower.records:NO_APP"}
    assert {path.name for path in (folder / "app").iterdir()} == {"pyproject.toml"}  # all that travels to the sites
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in written if re.search(rb"@[A-Z]+@", path.read_bytes())]

    home = tmp_path / "north"
    fingerprint = json.loads(done.stdout)["fingerprint"]
    invited = folder / "invitations" / "north.toml"
    told = json.loads(fedsynth("site", "join", invited, home, "--fingerprint", fingerprint, "--json").stdout)
    code, found = check(home)
    assert code == 8
    assert {what for what, (code, _) in found.items() if code} == {"rows", "policy"}
    assert "no plan is approved" in found["policy"][1]
    assert "not admitted yet" in found["roster"][1]
    site = (home / "site.toml").read_text()
    (home / "site.toml").write_text(
        site.replace('# plans = "any"', 'plans = "any"').replace("# rows_are_persons", "rows_are_persons")
    )
    rows(home, 50)
    assert told["identity_key"] == Keys(site_secret(load_site_config(home))).identity.hex()
    assert (home / "node-key.pub").read_text() == told["node_public_key"] + "\n"
    code, found = check(home)
    assert (code, found["account"][1][:19]) == (0, "spent epsilon = 0 o"), found
    key = load_coordinator(folder).public.hex()
    assert key[:16] in found["coordinator"][1]
    assert (folder / "coordinator.key").stat().st_mode & 0o777 == 0o600
    assert load_site_config(home).coordinator.hex() == key
    assert "is ready" in fedsynth("site", "check", home).stdout
    assert fedsynth("deploy", "init", folder, "--schema", "x", "--sites", "a", *budget).returncode == 8


def init(folder: Path, agreed: Path, *options: str) -> subprocess.CompletedProcess[str]:
    given = ("--schema", agreed, "--epsilon", "1", "--delta", "1e-6", *options)
    return fedsynth("deploy", "init", folder, *given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--sites", "north", "--superlink", "x; } evil { :443"), "not of the form HOST:PORT"),
        (("--sites", "north", "--superlink", "fed.example.org:443;"), "not of the form HOST:PORT"),
        (("--sites", "north", "--superlink", "fed.example.org:0"), "not of the form HOST:PORT"),
        (("--sites", "north", "--superlink", "fed.example\norg:443"), "not of the form HOST:PORT"),
        (("--sites", "north", "--superlink", "[::1]:443"), "host name"),
        (("--sites", "north,admin"), "'admin' cannot be a site's name"),
        (("--sites", "ca,north"), "'ca' cannot be a site's name"),
        (("--sites", "north,../x"), "'../x' is not a valid site name"),
        (("--sites", "north,a\nb"), "'a\\nb' is not a valid site name"),
        (("--sites", "north\n"), "'north\\n' is not a valid site name"),
        (("--sites", "north,$(id)"), "is not a valid site name"),
        (("--sites", "north", "--trust", 'local"]'), "trust"),
    ],
)
def test_what_would_reach_into_a_file_is_refused_and_nothing_is_written(tmp_path, options, says):
    SCHEMA.save(tmp_path / "agreed.toml")
    done = init(tmp_path / "new" / "federation", tmp_path / "agreed.toml", *options)
    assert done.returncode in (2, 6), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["agreed.toml"]


def test_a_federation_is_its_owners_alone_and_written_in_each_files_own_language(tmp_path):
    SCHEMA.save(tmp_path / "agreed.toml")
    folder = tmp_path / 'a "quoted\\" folder\n[x]'
    previous = os.umask(0)
    try:
        done = init(folder, tmp_path / "agreed.toml", "--sites", "north,south", "--superlink", "10.0.0.7:444", "--json")
    finally:
        os.umask(previous)
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.rglob("*"))} == {0}
    told = json.loads(done.stdout)["fingerprint"]
    for name in ("north", "south"):
        invitation = folder / "invitations" / f"{name}.toml"
        assert fedsynth("site", "join", invitation, tmp_path / name, "--fingerprint", told).returncode == 0
    connection = tomllib.loads((folder / "server" / "config.toml").read_text())["superlink"]["federation"]
    assert connection["root-certificates"] == str(folder / "server" / "ca.crt")
    site = tomllib.loads((tmp_path / "north" / "site.toml").read_text())
    assert site["policy"]["budget"] == {"epsilon": 1.0, "delta": 1e-6}
    assert site["policy"]["trusts"] == {"local": {}}
    assert load_site_config(tmp_path / "south").superlink == "10.0.0.7:444"
    assert "listen 444 ssl;" in (folder / "server" / "nginx.conf").read_text()
    forwarder = (tmp_path / "north" / "nginx.conf").read_text()
    assert "proxy_pass https://10.0.0.7:444;" in forwarder
    assert "ssl_certificate_key north.key;" in forwarder


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    home = write(tmp_path / "site")
    certificate(home / "ca.crt", days=100)
    config = load_site_config(home)
    create_state(config)
    make_node_key(config.key)
    return home


def test_a_site_scores_a_table_against_its_own_rows(ready):
    """Nothing is charged, and a table that does not fit is refused."""
    table = ready / "synthetic.csv"
    table.write_bytes((ready / "rows.csv").read_bytes())
    done = fedsynth("site", "check", ready, "--table", table, "--json")
    scores = {score["name"]: score["synthetic"]["value"] for score in json.loads(done.stdout)["scores"]}
    assert scores["column similarity"] > 0.85
    header, first, *_ = table.read_text().splitlines()
    table.write_text("\n".join([header, *[first] * 50]) + "\n")
    worse = json.loads(fedsynth("site", "check", ready, "--table", table, "--json").stdout)["scores"]
    assert next(one for one in worse if one["name"] == "column similarity")["synthetic"]["value"] < 0.6
    assert "for the site alone" in fedsynth("site", "check", ready, "--table", table).stdout
    assert open_account(load_site_config(ready)).spent().rho == 0
    table.write_text(table.read_text() + "moon,moon,moon,moon\n")
    done = fedsynth("site", "check", ready, "--table", table)
    assert (done.returncode, "do not fit the site's schema" in done.stderr) == (3, True)
    assert "--table needs the site's folder" in fedsynth("site", "check", "--table", table).stderr


def test_check_lists_each_finding_on_a_line_of_its_own(ready):
    good = (ready / "rows.csv").read_text().splitlines()
    header = [f"{good[0]},x,y", *(f"{line},1,2" for line in good[1:])]
    (ready / "rows.csv").write_text("\n".join([*header, "v0,zzz,v0,v0,1,2", "v0,zzz,v0,yyy,1,2", "v0,v0"]) + "\n")
    done = fedsynth("site", "check", ready)
    assert done.stderr == ""  # nothing is said twice
    at = next(k for k, line in enumerate(done.stdout.splitlines()) if " rows: " in line)
    head, *lines = done.stdout.splitlines()[at : at + 5]
    assert "50 rows fit schema" in head
    assert ", 3 do not and are left out" in head
    unlisted, other, malformed, columns = (line.removeprefix(" " * 9 + "- ") for line in lines)
    assert unlisted.startswith("column 'c1', row 50: 'zzz' is not listed: row left out (2 rows); add it")
    assert other.startswith("column 'c3', row 51: 'yyy' is not listed: row left out; add it")
    assert malformed.startswith("malformed lines, which are left out: 1 (line 54 has 2 cells, not 6)")
    assert columns == "2 columns are not in the schema and ignored: 'x', 'y'"


@pytest.mark.parametrize("how", [{}, {"streamed": True}])
def test_a_site_without_a_row_that_fits_fails_its_check_and_does_not_tell_the_server(tmp_path, how):
    source = {**CONTENT["source"], **how}
    config, empty = ready_site(tmp_path / "a", source=source), ready_site(tmp_path / "b", source=source)
    config.data.file.write_text("c0,c1,c2,c3\nv0,v0,v0,zzz\nv0,v0,v0,yyy\n")  # type: ignore[union-attr]
    empty.data.file.write_text("c0,c1,c2,c3\nv0,v0,v0,v0\nv0,v0,v0,v1\n")  # type: ignore[union-attr]
    (rows_,) = (one for one in check_site(config) if one.name == "rows")
    assert (rows_.state, rows_.code) == ("failure", 3)
    first, reason = rows_.found.split("\n- ")
    assert "has no rows that fit the schema (all 2 that were read are left out); correct them, or name" in first
    assert reason.startswith("column 'c3', row 0: 'zzz' is not listed: row left out (2 rows, also 'yyy'); add it")
    replies = [ask(one) for one in (config, empty)]
    assert [reply.code for reply in replies] == ["answered"] * 2
    assert len(replies[0].data) == len(replies[1].data)
    assert b"zzz" not in replies[0].data


def test_check_names_each_fault_with_its_mend_and_code(ready):
    assert check(ready)[0] == 0

    def finds(what: str, code: int, says: str) -> None:
        exit_code, found = check(ready)
        assert exit_code == code
        assert found[what][0] == code
        assert says in found[what][1]

    certificate(ready / "ca.crt", -1)
    finds("root certificates", 8, "ended on")
    certificate(ready / "ca.crt", 9, begins=5)
    finds("root certificates", 8, "clock")
    (ready / "ca.crt").write_text("no certificate")
    finds("root certificates", 8, "in PEM")
    certificate(ready / "ca.crt", days=9)
    assert "in time" in check(ready)[1]["root certificates"][1]

    (ready / "node-key").chmod(0o644)
    finds("node key", 8, "chmod go-rwx")
    (ready / "node-key").chmod(0o600)
    key = (ready / "node-key").read_bytes()
    (ready / "node-key").write_text("no key")
    finds("node key", 8, "not a key that Flower accepts")
    (ready / "node-key").write_bytes(key)

    (ready / "rows.csv").write_text("c0,c1,c2,c3\nv0,v0,v0,zzz\n")
    finds("rows", 3, "zzz")
    (ready / "rows.csv").write_text("c0,c1,c2,c3\nv0,v0,v0,zzz\nv0,v0,v0,v0\n")
    assert "1 do not and are left out" in check(ready)[1]["rows"][1]
    rows(ready, 50)

    config = load_site_config(ready)
    site = open_site(config)
    account = Book(config.account)
    account.begin(spend_all(site))
    finds("account", 4, "nothing is left")
    assert "spent epsilon = 1 of 1" in check(ready)[1]["account"][1]
    data = bytearray(config.account.read_bytes())
    config.account.write_bytes(data[: len(data) // 2])
    finds("account", 8, "damaged")


def spend_all(site: Site) -> Charge:
    budget = site.policy.budget
    facts: dict[str, Any] = {
        "step": 0,
        "verb": "sum",
        "kind": "size",
        "release": "{}",
        "trust": "local",
    }
    cost = Cost(budget.epsilon, budget.rho)
    limits: dict[str, Any] = {"total": budget, "per_run": budget}
    terms: dict[str, Any] = {"terms": "", "change": site.policy.change, "least": site.policy.change}
    return Charge(key="00", run="run", cost=cost, rows=site.rows_digest, **terms, **limits, **facts)


def test_check_warns_of_a_delta_that_promises_nothing(ready):
    policy = {**CONTENT["policy"], "budget": {"epsilon": 1.0, "delta": 0.1}, "weak_delta": True}
    content = {**CONTENT, "policy": policy}
    (ready / "site.toml").write_text(tomli_w.dumps(content))
    code, found = check(ready)
    assert code == 8
    assert "one over the 50 rows, 0.02:" in found["rows"][1]
    assert "such as 0.001, and agree" in found["rows"][1]
    content["policy"]["budget"]["delta"] = 0.001
    (ready / "site.toml").write_text(tomli_w.dumps(content))
    assert "promises" not in check(ready)[1]["rows"][1]


def test_check_sends_and_charges_nothing(ready):
    account = open_account(load_site_config(ready))
    before = account.head()
    check(ready)
    assert account.head() == before == (0, bytes(32))


def test_the_account_is_shown_closed_verified_and_exported_by_commands(ready, tmp_path):
    config = load_site_config(ready)
    assert ask(config, "monday").code == ask(config, "tuesday").code == "answered"
    shown = json.loads(fedsynth("account", ready, "--json").stdout)
    assert [one["run"] for one in shown["open_runs"]] == ["monday", "tuesday"]
    assert shown["spent"]["rho"] == pytest.approx(0.002)
    (asked,) = shown["open_runs"][0]["questions"]
    (charge, _) = open_account(config).charges()
    assert asked == {name: charge[name] for name in ("key", "step", "verb", "kind", "cost", "row")} | {
        "bytes": open_account(config).kept()[charge["key"]]
    }
    assert asked["bytes"] > 100
    said = fedsynth("account", ready).stdout
    assert "run monday (method not told, local, sites: 1, agreement " in said
    assert f"{asked['key'][:12]}  step {asked['step']} (" in said
    closed = fedsynth("account", ready, "--close", "monday")
    assert (closed.returncode, "1 question" in closed.stdout) == (0, True)
    assert fedsynth("account", ready, "--close", "sunday").returncode == 2

    export = tmp_path / "audit.jsonl"
    whole = json.loads(fedsynth("account", ready, "--export", export, "--noted", shown["head"], "--json").stdout)
    assert (whole["intact"], whole["rows"], whole["noted_at"]) == (True, 3, 2)
    assert export.stat().st_mode & 0o777 == 0o600
    lines = export.read_bytes().splitlines(keepends=True)
    assert fedsynth("account", export, "--noted", whole["head"]).returncode == 0
    export.write_bytes(b"".join(lines[:2]))
    cut = fedsynth("account", export, "--noted", whole["head"])
    assert (cut.returncode, "cut off the end" in cut.stdout) == (8, True)
    export.write_bytes(lines[0] + lines[2])
    assert "row 2" in fedsynth("account", export).stdout
    assert fedsynth("account", export, "--close", "monday").returncode == 2
    assert fedsynth("account").returncode == 2
    assert fedsynth("account", tmp_path / "none.jsonl").returncode == 2


def test_the_account_says_which_limit_refused_a_question(tmp_path):
    policy = {**CONTENT["policy"], "per_run": {"epsilon": 0.5, "delta": 1e-6}}
    config = ready_site(tmp_path / "site", policy=policy)
    assert "not answered" not in fedsynth("account", config.folder).stdout
    assert ask(config, "monday", rho=0.9 * Budget(1, 1e-6).rho).code == "spent"
    (refusal,) = json.loads(fedsynth("account", config.folder, "--json").stdout)["refusals"]
    assert (refusal["run"], refusal["outcome"]) == ("monday", "spent")
    assert "where per_run in [policy] is epsilon = 0.5 at delta = 1e-06" in refusal["reason"]
    assert f"run monday, step 0: spent: {refusal['reason']}\n" in fedsynth("account", config.folder).stdout
    assert ask(config, "tuesday", trust="secure").code == "refused"
    shown = fedsynth("account", config.folder).stdout
    assert "run tuesday, step 0: refused: this site does not accept the trust 'secure' but local; change" in shown
    open_account(config).note("refused", request="00", reason="a\x1b[2Jb")
    assert "refused: a\\x1b[2Jb\n" in fedsynth("account", config.folder).stdout  # no command to the terminal


def test_a_restored_backup_is_written_off_by_command(ready):
    config = load_site_config(ready)
    assert ask(config, "known").code == "answered"
    account, seed = open_account(config), Keys(site_secret(config)).seed
    lost = str(AuditPosition.signed(seed, "north", 9, bytes(32)))
    written = ("account", ready, "--restored", lost, "--began", "unknown", "--json")
    assert fedsynth(*written).returncode == 9
    done = json.loads(fedsynth(*written, "--yes").stdout)
    assert done["rows"] >= 10
    spent, limit = account.spent(), config.policy.budget
    assert done["spent"]["rho"] == spent.rho
    assert limit.price(spent) >= 2 * limit.rho * (1 - 1e-9)
    assert ask(config, "known", step=1).code == "refused"
    assert fedsynth("account", ready, "--began", "unknown").returncode == 2
    both = fedsynth("account", ready, "--restored", lost, "--extract", "known")
    assert (both.returncode, "give one at a time" in both.stderr) == (2, True)


def test_only_a_row_that_the_site_signed_and_lost_is_written_off(ready):
    """A number alone, or another's signature, once charged every open run to its limit."""
    config = load_site_config(ready)
    held = ask(config, "known").seen
    account, before = open_account(config), list(open_account(config).export())
    whole = str(AuditPosition.signed(Keys(site_secret(config)).seed, "north", 9, bytes(32)))
    for head, says in (
        ("9", "is not the signed head of an audit"),
        (whole[:-1], "is not the signed head of an audit"),
        (whole + "A", "is not the signed head of an audit"),
        (whole.replace("9:", "10:", 1), "did not sign this head"),
        (str(AuditPosition.signed(bytes(32), "north", 9, bytes(32))), "did not sign this head"),
        (
            str(AuditPosition.signed(Keys(site_secret(config)).seed, "south", 9, bytes(32))),
            "did not sign this head",
        ),
        (str(held), "nothing is charged"),
    ):
        done = fedsynth("account", ready, "--restored", head)
        assert (done.returncode != 0, says in done.stderr.replace("\n", " ")) == (True, True), (head, done.stderr)
    assert list(account.export()) == before


SITES = {"run": "r", "sites": ["a", "b"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"deployment": {**SITES, "sites": ["a", "a"]}}, "once"),
        ({"deployment": {**SITES, "sites": ["server"]}}, "server"),
        ({"deployment": {**SITES, "sites": ["admin", "b"]}}, "role or file"),
        ({"deployment": {**SITES, "sites": ["a", "../b"]}}, "is not a valid site name"),
        ({"deployment": {**SITES, "sites": ["a", 7]}}, r"\[deployment\] sites: expected text, not 7"),
        ({"deployment": {**SITES, "peers": {"a\nb": "ab" * 32}}}, "is not a valid site name"),
        ({"deployment": {**SITES, "run": "a/b"}}, "is not a valid run name"),
        ({"deployment": {**SITES, "min_sites": 3}}, "min_sites"),
        ({"deployment": {**SITES, "deadline": 0}}, "deadline"),
        ({"rows_per_person": 0}, "rows_per_person"),
        ({"deployment": {**SITES, "site": "a"}}, r"job.toml: \[deployment\] site is unknown; did you mean 'sites'"),
        ({"deployment": {"run": "r"}}, r"\[deployment\] sites is missing"),
        ({"data": "rows.csv", "seed": 3}, "data, seed only apply to simulated runs"),
        ({"format": "xls"}, "csv, parquet"),
        ({"epsilonn": 1}, "epsilonn is unknown; did you mean 'epsilon'"),
        ({"attempts": 2}, "attempts is unknown; known are"),
        ({"method": None}, "method is missing"),
        ({"deployment": {**SITES, "sites": "north"}}, "expected a list of texts, not 'north'"),
    ],
)
def test_a_job_that_cannot_be_is_refused(tmp_path, change, says):
    job = {"method": "oneshot", "epsilon": 1.0, "delta": 1e-6, "trust": "local"}
    content = {name: value for name, value in {**job, "deployment": SITES, **change}.items() if value is not None}
    (tmp_path / "job.toml").write_text(tomli_w.dumps(content))
    with pytest.raises(FedsynthError, match=says):
        Job.load(tmp_path / "job.toml")


def test_a_job_builds_its_method_and_trust(tmp_path):
    job = Job(
        "augflaim", 1.0, 1e-6, trust="local", workload="2:3", options={"rounds": 4}, deployment=Deployment("r", ("a",))
    )
    method: Any = job.build_method(SCHEMA)
    assert (method.rounds, len(method.workload)) == (4, 3)
    assert job.build_trust().name == "local"
    (tmp_path / "job.toml").write_text(job.to_toml())
    assert Job.load(tmp_path / "job.toml") == job
    with pytest.raises(Unsupported, match="workload"):
        Job("oneshot", 1.0, 1e-6, workload="2:3").build_method(SCHEMA)


def test_a_site_that_accepts_secure_sums_needs_the_others_keys(tmp_path):
    policy = {**CONTENT["policy"], "trusts": {"secure": {}}}
    config = load_site_config(write(tmp_path / "alone", policy=policy))
    create_state(config)
    found = {one.name: one for one in check_site(config)}
    assert found["policy"].code
    assert "roster of all sites" in found["policy"].found
    assert found["roster"].state == "warning"
    config = load_site_config(write(tmp_path / "three", policy=policy))
    create_state(config)
    peers = {name: Keys(name.encode() * 32).identity.hex() for name in ("south", "east")}
    config = load_site_config(with_roster(config.folder, north=Keys(site_secret(config)).identity.hex(), **peers))
    found = {one.name: one for one in check_site(config)}
    assert found["policy"].state == "ok"
    assert "at least 2 of the 3 sites are honest" in found["policy"].found


# ---------------------------------------------------------------------------------------------------------------------
# The source file


def declared_site(home: Path, told: str = 'data = "rows.csv"\n', **source: Any) -> SiteConfig:
    """Return a ready site whose rows a source file declares."""
    private_folder(home)
    (home / "north.toml").write_text(told)
    given = {name: value for name, value in CONTENT["source"].items() if name != "data"}
    return ready_site(home, source={**given, "file": "north.toml", **source})


@pytest.mark.parametrize(("way", "code"), [({}, "failed"), ({"streamed": True}, "refused")])
def test_a_run_is_bound_to_the_source_file_that_it_began_with(tmp_path, way, code):
    config = declared_site(tmp_path / "site", **way)
    assert (ask(config).code, ask(config, step=1).code) == ("answered", "answered")
    file = tmp_path / "site" / "north.toml"
    file.write_text(f"# a comment changes nothing\n{file.read_text()}")
    config = load_site_config(config.folder)
    assert ask(config, step=2).code == "answered"
    spent = open_account(config).spent("run")
    file.write_text('data = "rows.csv"\nmissing = ["v0"]\n')
    changed = load_site_config(config.folder)
    assert ask(changed, step=3).code == code
    assert open_account(changed).spent("run") == spent
    assert ask(changed, "another").code == "answered"
    if not way:  # the account keeps the digest, and a log the reason
        with pytest.raises(FedsynthError, match="the source file of north has changed since run run began"):
            open_site(changed).rows.require("run")
        assert str(open_account(changed).pinned("another")).endswith(f"-{changed.data.digest}")  # type: ignore[attr-defined]
    file.unlink()
    write(tmp_path / "site", source={**CONTENT["source"], **way})  # with data in place of the source file
    assert ask(load_site_config(config.folder), step=4).code == code


def test_a_site_with_a_source_file_reads_its_rows_as_one_without(tmp_path):
    plain, declared = ready_site(tmp_path / "plain"), declared_site(tmp_path / "declared")
    assert {ask(plain).code, ask(declared).code} == {"answered"}
    assert rows_of(plain).digest == rows_of(declared).digest


@pytest.mark.parametrize(
    ("source", "told", "message"),
    [
        ({"data": "rows.csv"}, 'data = "rows.csv"', "data or file, and not both"),
        ({"file": ""}, 'data = "rows.csv"', "data or file, and not both"),
        ({"file": "rows.csv"}, 'data = "rows.csv"', "name a file with rows as data"),
        ({"counted": True}, 'data = "rows.csv"', "write streamed = true"),
        ({"records": "lines"}, 'data = "rows.csv"', "write records into csv in it"),
        ({}, 'data = "rows.csv"\ndraft = true', "delete its line draft = true"),
        ({}, 'data = "rows.csv"\nlookup = { data = "p.csv", key = "ID" }', "must identify the persons"),
        ({}, 'data = "rows.csv"\nlokup = 1', "lokup is unknown"),
    ],
)
def test_source_files_that_a_site_refuses(tmp_path, source, told, message):
    with pytest.raises(FedsynthError, match=message):
        declared_site(tmp_path / "site", told, **source)


def test_a_site_without_a_column_answers_with_missing_values(tmp_path):
    """A site finds out before it is charged whether the schema lets the column be missing."""
    config = declared_site(tmp_path / "site", 'data = "rows.csv"\nabsent = ["c1"]\n')
    (config.folder / "rows.csv").write_text("c0,c2,c3\n" + "v0,v1,v2\nv1,v0,v0\n" * 20)
    assert ask(config).code != "answered"
    assert open_account(config).spent("run").rho == 0
    found = {one.name: one for one in check_site(config)}["rows"]
    assert (found.state, found.code) == ("failure", 3)
    assert "have all sites agree on missing = true for it, or say which column of the file holds it" in found.found
    columns = [msgspec.structs.replace(one, missing=one.name == "c1") for one in SCHEMA.stored]
    agreed = Schema(tuple(columns))
    agreed.save(config.schema)
    assert {one.name: one.state for one in check_site(load_site_config(config.folder))}["rows"] == "ok"
    table = load_rows(load_site_config(config.folder), agreed, bytes(32))
    assert (len(table), set(table.codes[1].tolist())) == (40, {agreed.sizes[1] - 1})


def test_site_check_refuses_cells_that_can_be_read_in_two_ways(tmp_path):
    config = declared_site(tmp_path / "site")
    Schema((Numeric("x", 0, 1e4, missing=True),)).save(config.schema)
    (config.folder / "rows.csv").write_text("x,y\n1.234,1\n5,1\n")
    found = {one.name: one for one in check_site(config)}["rows"]
    assert (found.state, found.code) == ("failure", 3)
    assert 'declare decimal = "." or decimal = ","' in found.found
    (config.folder / "north.toml").write_text('data = "rows.csv"\ndecimal = "."\n')
    assert {one.name: one.state for one in check_site(load_site_config(config.folder))}["rows"] == "ok"
