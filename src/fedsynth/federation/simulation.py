"""A federation inside one process: the same sites, ledgers and messages as a deployed one, without the network."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedsynth.errors import SchemaError, Unsupported
from fedsynth.federation.federation import Federation, Progress, silent
from fedsynth.federation.names import check_site_name
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Recorded, Transport
from fedsynth.federation.trust import Trust
from fedsynth.federation.trust.masking import identity
from fedsynth.privacy.ledger import Ledger, SiteLedger
from fedsynth.privacy.release import Budget
from fedsynth.schema import Schema
from fedsynth.table import Table


def federate(
    tables: Mapping[str, pd.DataFrame | Table] | Sequence[pd.DataFrame | Table],
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust,
    seed: int | None = None,
    public_sizes: bool = False,
    exact: bool = False,
    transcript: Path | None = None,
    progress: Progress = silent,
    transport: Callable[[Sequence[Site]], Transport] = InProcess,
) -> Federation:
    """Return a federation of one site per table, ready for ``Method.fit``.

    Parameters
    ----------
    tables
        One data frame (or encoded table) per site, with names or without; a site may be empty.
    schema
        The public schema, agreed first. Frames are checked against it and encoded:
        :class:`~fedsynth.errors.SchemaError`.
    budget
        What each record may cost in all. Each site's own ledger enforces it.
    trust
        Who adds the noise: :class:`TrustedServer`, :class:`LocalNoise` or :class:`SecureSum`.
    seed
        Fixes everything *including the noise*, for simulation only; the ledger says so. ``None`` takes noise
        from the operating system's entropy.
    public_sizes
        Declare each site's number of rows public. Otherwise methods that need it buy a noisy count.
    exact
        Let sites release without noise, for labelled oracles and non-private baselines.
    transcript
        File that records every message, and from which an interrupted run resumes.
    """
    encoded = _encode(tables, schema)
    if not encoded:
        raise Unsupported("a federation needs at least one site; pass a table for each")
    run = uuid.uuid4().hex if seed is None else f"simulation-{seed}"
    secrets = {name: _secret(seed, name) for name in encoded}
    trust = trust.among({name: identity(secret) for name, secret in secrets.items()})
    policy = Policy(budget, {trust.name: trust}, exact=exact, size_is_public=public_sizes)
    sites = [Site(name, table, policy, SiteLedger(), secrets[name]) for name, table in encoded.items()]
    channel = transport(sites)
    if transcript is not None:
        channel = Recorded(channel, transcript)
    return Federation(
        schema,
        Ledger(budget, seeded_noise=seed is not None, assumption=trust.assumption),
        trust,
        channel,
        tuple(encoded),
        np.random.default_rng(seed),
        run,
        _secret(seed, "server"),
        sizes={name: len(table) for name, table in encoded.items()} if public_sizes else None,
        progress=progress,
    )


def _encode(
    tables: Mapping[str, pd.DataFrame | Table] | Sequence[pd.DataFrame | Table], schema: Schema
) -> dict[str, Table]:
    named = tables if isinstance(tables, Mapping) else {f"site-{k:03d}": table for k, table in enumerate(tables)}
    encoded = {}
    for name, table in named.items():
        check_site_name(name)
        encoded[name] = table if isinstance(table, Table) else schema.encode(table)
        if encoded[name].schema.digest != schema.digest:
            raise SchemaError(f"site {name!r} is encoded under another schema; encode its rows with the agreed one")
    return encoded


def _secret(seed: int | None, owner: str) -> bytes:
    """Return 32 random bytes, or in a seeded simulation 32 bytes that anybody who knows the seed can derive."""
    return os.urandom(32) if seed is None else hashlib.sha256(f"seeded simulation {seed} {owner}".encode()).digest()
