"""``fedsynth prove``: whether a run's releases, its ledger and the sites' own accounts agree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsynth.cli.options import Json

if TYPE_CHECKING:
    from fedsynth.federation.proof_sheet import ProofSheet


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
    from fedsynth.runs.folder import RunFolder

    run = RunFolder(folder)
    run.require(run.run_file, run.schema_file, run.ledger_file, run.transcript)
    return proof_of(
        run.transcript,
        run.ledger_file,
        run.schema,
        run.trust,
        run.job.budget,
        extracts=[Extract.load(path) for path in extracts],
        identities=known,
    )


def _identity(text: str) -> tuple[str, bytes]:
    name, _, key = text.partition("=")
    try:
        public = bytes.fromhex(key)
    except ValueError:
        public = b""
    if not name or len(public) != 32:
        raise typer.BadParameter(f"--identity {text}: give NAME=KEY, with the 64 hexadecimal digits of the site's key")
    return name, public
