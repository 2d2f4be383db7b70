"""What the attacks need: three columns, sites with rows in them, and a server that sends any bytes it likes.

An attack's test asserts the safe behaviour, so it fails for as long as the attack works. The server of these tests
holds nothing but messages and what the protocol tells it; where a test looks at rows, it does so to judge the attack.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from numpy.typing import NDArray

from fedsynth.deploy.site_config import SiteConfig, create_state, load_site_config, open_site
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Audit, Site, unrecorded
from fedsynth.federation.trust import Trust, masking
from fedsynth.federation.trust.local import LocalNoise
from fedsynth.federation.trust.secure_session import SecureSession
from fedsynth.federation.trust.secure_sum import SecureSum
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Budget, Gaussian, Release, Sensitivity
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.table import Table

DIAGNOSES = ("a", "b", "c", "d", "rare")
SCHEMA = Schema((Categorical("sex", ("f", "m")), Categorical("diagnosis", DIAGNOSES), Numeric("age", 0, 100, bins=10)))
SEX, DIAGNOSIS, AGE = 0, 1, 2
BUDGET = Budget(1.0, 1e-6)
CHEAP = Gaussian(1e-4)
TARGET = {"sex": "m", "diagnosis": "rare", "age": 97.0}
"""The record that an attacker looks for; nobody else has its diagnosis."""

Message = tuple[Request, Reply]

# ---------------------------------------------------------------------------------------------------------------------
# Rows


def frame(rows: int = 40, seed: int = 0, target: bool = False) -> pd.DataFrame:
    """Return rows of which the last, with ``target``, is the record that an attacker looks for."""
    rng = np.random.default_rng(seed)
    others = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], rows),
            "diagnosis": rng.choice(DIAGNOSES[:-1], rows),
            "age": rng.integers(0, 90, rows).astype(float),
        }
    )
    return pd.concat([others, pd.DataFrame([TARGET])], ignore_index=True) if target else others


def table(rows: int = 40, seed: int = 0, target: bool = False) -> Table:
    """Return the rows of :func:`frame`, encoded."""
    return SCHEMA.encode(frame(rows, seed, target))


# ---------------------------------------------------------------------------------------------------------------------
# Sites


def site(
    rows: Table | None = None,
    *,
    name: str = "north",
    trust: Trust | None = None,
    ledger: SiteLedger | None = None,
    audit: Audit = unrecorded,
    secret: bytes = bytes(range(32)),
) -> Site:
    """Return a site whose steward accepts one trust, local noise if none is given."""
    accepted = trust or LocalNoise()
    policy = Policy(BUDGET, {accepted.name: accepted})
    return Site(name, table() if rows is None else rows, policy, ledger or SiteLedger(), secret, audit)


def secure_sites(number: int, trust: SecureSum) -> list[Site]:
    """Return sites that know each other's identity keys and accept secure sums only."""
    secrets = {f"site-{k}": bytes([k + 1]) * 32 for k in range(number)}
    agreed = trust.among({name: masking.identity(secret) for name, secret in secrets.items()})
    return [
        site(table(20 + 5 * k, k), name=name, trust=agreed, secret=secret)
        for k, (name, secret) in enumerate(secrets.items())
    ]


def deployed(folder: Path, rows: pd.DataFrame) -> SiteConfig:
    """Return a deployed site, with its rows in a CSV file."""
    folder.mkdir(parents=True)
    SCHEMA.save(folder / "schema.toml")
    rows.to_csv(folder / "rows.csv", index=False)
    content = {
        "site": {"name": "north"},
        "source": {"data": "rows.csv", "schema": "schema.toml"},
        "policy": {"budget": {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta}, "trusts": {"local": {}}},
        "flower": {"superlink": "127.0.0.1:9"},
    }
    (folder / "site.toml").write_text(tomli_w.dumps(content))
    os.utime(folder / "rows.csv", (0, 0))
    config = load_site_config(folder)
    create_state(config)
    return config


# ---------------------------------------------------------------------------------------------------------------------
# The server's messages


def question(
    task: str = "marginals", release: Release = CHEAP, *, step: int = 0, trust: str = "local", **params: Any
) -> Request:
    """Return a sum that an honest server could ask for; by default the counts of ``cliques``."""
    return Request("run", step, "sum", task, release, trust, SCHEMA.digest, params)


def ask(of: Site, message: Request | bytes) -> Reply:
    """Send one message to a site as bytes, and return what comes back as bytes."""
    data = message if isinstance(message, bytes) else message.to_bytes()
    return Reply.from_bytes(of.answer(Request.from_bytes(data)).to_bytes())


def ask_deployed(config: SiteConfig, message: Request) -> Reply:
    """Send one message to a deployed site, whose transport reports the class of an error, as any transport must."""
    try:
        with open_site(config, message.run) as opened:
            return ask(opened, message)
    except Exception as error:
        return Reply(config.name, message.digest, error=type(error).__name__)


def values(reply: Reply) -> NDArray[np.int64]:
    """Return the numbers of a reply that has some."""
    assert reply.values is not None, reply
    return reply.values


def forged(request: Request, arrays: Mapping[str, NDArray[Any]] | None = None, **entries: Any) -> bytes:
    """Return the message with other ``entries`` in its head, which no constructor has looked at.

    An entry may refer to one of ``arrays`` as ``{"__array__": name}``.
    """
    with zipfile.ZipFile(io.BytesIO(request.to_bytes())) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["meta.json"] = json.dumps({**json.loads(parts["meta.json"]), **entries}).encode()
    for name, array in (arrays or {}).items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        parts[f"{name}.npy"] = buffer.getvalue()
    return zipped(parts)


def zipped(parts: Mapping[str, bytes]) -> bytes:
    """Return an archive of named parts, compressed as far as it goes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def converse(
    sites: Sequence[Site], request: Request, until: int, answer: Callable[[Site, Request], Reply] = ask
) -> dict[str, Message]:
    """Play the server of a secure sum through turn ``until``; return that turn's messages and replies by site."""
    trust = sites[0].policy.trusts["secure"]
    doors = {of.name: of for of in sites}
    session = trust.session(request, list(doors), Sensitivity(1, 1), lambda exact: pytest.fail("no server noise"))
    assert isinstance(session, SecureSession)
    said: dict[str, Message] = {}
    while session.turn < until:
        said = {name: (message, answer(doors[name], message)) for name, message in session.ask().items()}
        for _, reply in said.values():
            assert not reply.error, reply
            session.hear(reply)
    return said
