"""The folder of a run, verified by itself: the proof sheet, and what does not agree."""

import json

import numpy as np
import pandas as pd
import pytest
import tomli_w
from tests.command import invoke

from fedsynth.errors import FedsynthError
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Budget
from fedsynth.proof.extract import extract
from fedsynth.publish.verify import verify
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.site import SecureSum

SCHEMA = Schema((Categorical("sex", ("f", "m")),))


def write_run(folder, trust):
    """Write the files of a run of three sites that a proof reads, and return the sites."""
    sites: list[Site] = []

    def transport(made):
        sites.extend(made)
        return InProcess(made)

    folder.mkdir()
    rng = np.random.default_rng(0)
    federation = federate(
        {name: pd.DataFrame({"sex": rng.choice(["f", "m"], 20)}) for name in ("east", "north", "south")},
        SCHEMA,
        Budget(1.0, 1e-6),
        trust=trust,
        transcript=folder / "transcript",
        transport=transport,
    )
    federation.sum(Counts.of(1, [(0,)]), 0.5)
    SCHEMA.save(folder / "schema.toml")
    account = {**federation.ledger.to_json(), "statement": federation.statement.to_json()}
    (folder / "ledger.json").write_text(json.dumps(account))
    identities = {site.name: Keys(site.secret).identity.hex() for site in sites}
    job = {"method": "oneshot", "epsilon": 1.0, "delta": 1e-6, "trust": trust.name, "made": {"identities": identities}}
    (folder / "run.toml").write_text(tomli_w.dumps(job))
    for site in sites:
        signed = extract(site.account, site.secret, site.name, federation.run, site.coordinator)
        (folder.parent / f"{site.name}.json").write_bytes(signed.to_json())
    return sites


@pytest.mark.parametrize("trust", [LocalNoise(), SecureSum()], ids=lambda trust: trust.name)
def test_a_run_is_proved_from_its_folder(tmp_path, trust):
    sites = write_run(tmp_path / "run", trust)
    arguments = ["verify", str(tmp_path / "run")]
    for site in sites:
        arguments += ["--extract", str(tmp_path / f"{site.name}.json")]
        arguments += ["--identity", f"{site.name}={Keys(site.secret).identity.hex()}"]
    result = invoke(arguments)
    assert result.exit_code == 0, result.output
    assert "confirmed by the signed accounts of east, north, south" in result.output
    result = invoke([*arguments, "--json"])
    assert json.loads(result.output)["proved"]


def test_what_does_not_agree_is_exit_code_8(tmp_path):
    write_run(tmp_path / "run", LocalNoise())
    ledger = tmp_path / "run" / "ledger.json"
    content = json.loads(ledger.read_text())
    content["entries"][0]["cost"]["rho"] /= 2
    ledger.write_text(json.dumps(content))
    result = invoke(["verify", tmp_path / "run"])
    assert result.exit_code == 8
    assert "PROBLEM: step 0 (sum counts): it costs" in result.output


def test_what_is_no_run_is_said_so(tmp_path):
    with pytest.raises(FedsynthError, match=r"and no run\.toml"):
        verify(tmp_path)
    write_run(tmp_path / "run", SecureSum())
    (tmp_path / "run" / "run.toml").write_text('method = "oneshot"\nepsilon = 1.0\ndelta = 1e-6\ntrust = "secure"\n')
    with pytest.raises(FedsynthError, match="names no identity keys"):
        verify(tmp_path / "run")


@pytest.mark.parametrize("text", ["north", "north=12", "north=zz", f"={'00' * 32}"])
def test_an_identity_is_a_name_and_a_key(tmp_path, text):
    result = invoke(["verify", tmp_path, "--identity", text])
    assert result.exit_code == 2
