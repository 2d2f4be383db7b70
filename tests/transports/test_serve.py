"""The command that answers for a site: what it refuses before it has reached anything."""

from __future__ import annotations

import json
import logging

import pytest
from tests.contract.world import SCHEMA, random_table
from tests.transports.flower_world import lay_out
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.cli.app import app
from fedsynth.cli.options import JsonLines
from fedsynth.errors import FedsynthError
from fedsynth.host.state import NODE_SECRET, make_node_secret, node_secret
from fedsynth.privacy.cost import Budget


def test_a_secret_that_others_can_read_is_not_used(tmp_path):
    file = tmp_path / NODE_SECRET
    with pytest.raises(FedsynthError, match="site join"):
        node_secret(file)
    make_node_secret(file)
    secret = node_secret(file)
    assert len(secret) == 32
    make_node_secret(file)
    assert node_secret(file) == secret
    file.chmod(0o644)
    with pytest.raises(FedsynthError, match="chmod"):
        node_secret(file)


def test_a_site_without_its_files_is_told_which(tmp_path):
    missing = CliRunner().invoke(app, ["site", "serve", str(tmp_path / "nowhere")])
    assert missing.exit_code
    assert "is missing" in str(missing.exception)
    root = tmp_path / "federation"
    lay_out(root, {"north": random_table(20, 0)}, SCHEMA, "local", "oneshot", budget=Budget(1.0, 1e-6))
    bare = CliRunner().invoke(app, ["site", "serve", str(root / "sites" / "north")])
    assert bare.exit_code
    assert "ca.crt" in str(bare.exception) or NODE_SECRET in str(bare.exception)


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
