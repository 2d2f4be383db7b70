"""``fedsynth prove``: whether a run's releases, its ledger and the sites' own accounts agree."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsynth import errors
from fedsynth.cli.options import Json
from fedsynth.files import load_toml

if TYPE_CHECKING:
    from fedsynth.federation.proof_sheet import ProofSheet
    from fedsynth.federation.trust import Trust


def prove(
    run: Annotated[Path, typer.Argument(help="A run's directory, simulated or deployed.")],
    extract: Annotated[
        list[Path] | None, typer.Option("--extract", help="Signed account extract of a site; may be repeated.")
    ] = None,
    identity: Annotated[
        list[str] | None,
        typer.Option("--identity", help="Identity key of a site, NAME=KEY, as the site itself gave it to you."),
    ] = None,
    json_: Json = False,
) -> None:
    """Recompute every release of a run from what was asked, and compare the ledger and the sites' accounts with it.

    The sheet says of each release what was asked, its sensitivity, its noise and what it costs one person. A site makes
    its extract with `fedsynth site account --extract RUN`; without extracts the sheet rests on the server's word.

    Exit codes: 0 all of it agrees, 8 something does not.

    Examples:

      fedsynth prove federation/runs/2026-11-21-a1b2c3

      fedsynth prove run --extract north.json --extract south.json --identity north=5f0c... --identity south=77ab...
    """
    sheet = prove_run(run, extract or (), dict(_identity(text) for text in identity or ()))
    print(json.dumps(sheet.to_json()) if json_ else sheet.text)
    if sheet.problems:
        raise typer.Exit(8)


def prove_run(folder: Path, extracts: Sequence[Path] = (), known: Mapping[str, bytes] | None = None) -> ProofSheet:
    """Return the proof sheet of a run directory; ``known`` are identity keys from the sites themselves.

    Raises :class:`~fedsynth.errors.FedsynthError` for a folder that is no run, or lacks one of its files.
    """
    from fedsynth.federation.extract import Extract
    from fedsynth.federation.proof import prove as proof_of
    from fedsynth.privacy.cost import Budget
    from fedsynth.schema import Schema

    for name in ("run.toml", "schema.toml", "ledger.json", "transcript"):
        if not (folder / name).is_file():
            raise errors.FedsynthError(f"{folder} holds no {name}; give the directory that a complete run wrote")
    job = load_toml(folder / "run.toml")
    return proof_of(
        folder / "transcript",
        folder / "ledger.json",
        Schema.load(folder / "schema.toml"),
        _trust_of(job, folder),
        Budget.none() if math.isinf(job["epsilon"]) else Budget(job["epsilon"], job["delta"]),
        extracts=[Extract.load(path) for path in extracts],
        identities=known,
    )


def _trust_of(job: Mapping[str, Any], folder: Path) -> Trust:
    from fedsynth.federation.policy_file import trust_named

    trust = trust_named(job["trust"], job.get("trust_options", {}))
    keys = job.get("peers") or job.get("made", {}).get("identities", {})  # a deployed job's, or a simulation's
    roster = {name: bytes.fromhex(key) for name, key in keys.items()}
    if trust.turns > 1 and not roster:
        raise errors.FedsynthError(
            f"{folder / 'run.toml'} names no identity keys, on which the noise of the trust {trust.name!r} depends; "
            "run it again with this version"
        )
    return trust.among(roster)


def _identity(text: str) -> tuple[str, bytes]:
    name, _, key = text.partition("=")
    try:
        public = bytes.fromhex(key)
    except ValueError:
        public = b""
    if not name or len(public) != 32:
        raise typer.BadParameter(f"--identity {text}: give NAME=KEY, with the 64 hexadecimal digits of the site's key")
    return name, public
