"""The command that answers for a site: what it refuses before it has reached anything."""

from __future__ import annotations

import json
import logging

import pytest
from tests.command import invoke
from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import lay_out
from tests.deploy.test_site_config import certificate

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.cli.options import JsonLines
from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.commands.operate import _warn_of_certificates
from fedsynth.deploy.flower.control import FlowerControl
from fedsynth.deploy.flower.executor import server_secret
from fedsynth.errors import FedsynthError
from fedsynth.locks import exclusive
from fedsynth.privacy.cost import Budget


def test_a_secret_that_everybody_can_read_is_not_used(tmp_path):
    """Those of the group may: the SuperLink and the server's process can be two users."""
    file = tmp_path / "superexec.secret"
    with pytest.raises(FedsynthError, match="deploy init"):
        server_secret(file)
    file.write_bytes(bytes(32))
    file.chmod(0o644)
    with pytest.raises(FedsynthError, match="chmod o-rwx"):
        server_secret(file)
    file.chmod(0o640)
    assert server_secret(file) == bytes(32)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("Using SuperLink: federation (127.0.0.1:9) Internal server error.", "a full disk is one reason: free space"),
        ("Connection refused", "Is the SuperLink up, and does config.toml"),
    ],
)
def test_what_the_flwr_command_could_not_do_comes_with_the_next_step(tmp_path, monkeypatch, answer, says):
    program = tmp_path / "flwr"
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("fedsynth.deploy.flower.control.PATH", str(tmp_path))
    with pytest.raises(FedsynthError, match=says) as caught:
        FlowerControl(tmp_path).start()
    assert answer.rstrip(".") in str(caught.value)


def test_a_server_says_which_of_its_certificates_end(tmp_path, caplog):
    authority = Authority.create()
    (tmp_path / "ca.crt").write_text(authority.text)
    (tmp_path / "server.pem").write_text(authority.issue_with_key("server", "server", "localhost")[0])
    _warn_of_certificates(tmp_path)
    assert caplog.text == ""
    certificate(tmp_path / "server.pem", -1, -30)
    _warn_of_certificates(tmp_path)
    assert "server/server.pem: " in caplog.text
    assert "; `fedsynth deploy admit` renews it with the authority's key" in caplog.text


def test_two_processes_do_not_answer_with_one_key(tmp_path):
    root = tmp_path / "federation"
    lay_out(root, {"north": random_table(20, 0)}, SCHEMA, "local", "oneshot", budget=Budget(1.0, 1e-6))
    home = root / "sites" / "north"
    (home / "ca.crt").write_text(Authority.create().text)
    with exclusive(home / "state" / "serve.lock"):
        second = invoke(["site", "serve", str(home)])
    assert "another `fedsynth site serve`" in second.output
    assert second.exit_code == 8


def test_a_site_without_its_files_is_told_which(tmp_path):
    missing = invoke(["site", "serve", str(tmp_path / "nowhere")])
    assert missing.exit_code
    assert "is missing" in missing.output
    root = tmp_path / "federation"
    lay_out(root, {"north": random_table(20, 0)}, SCHEMA, "local", "oneshot", budget=Budget(1.0, 1e-6))
    bare = invoke(["site", "serve", str(root / "sites" / "north")])
    assert bare.exit_code
    assert "`fedsynth site check` names the file" in bare.output


def test_a_log_in_json_has_a_line_for_each_record_with_its_traceback():
    try:
        raise ValueError("line 1\nline 2")
    except ValueError as error:
        why = (type(error), error, None)
        failed = logging.LogRecord("fedsynth.site", logging.ERROR, "", 0, "%s failed", ("south",), why)
    text = JsonLines().format(failed)
    assert "\n" not in text
    content = json.loads(text)
    assert (content["level"], content["logger"], content["message"]) == ("ERROR", "fedsynth.site", "south failed")
    assert content["time"].endswith("+00:00")
    assert "ValueError: line 1\nline 2" in content["traceback"]
    plain = logging.LogRecord("fedsynth.site", logging.INFO, "", 0, "answered", (), None)
    assert "traceback" not in json.loads(JsonLines().format(plain))
