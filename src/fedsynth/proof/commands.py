"""``fedsynth prove``: compare a run's releases, the server's ledger and the sites' own records of charges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsynth.cli.options import say
from fedsynth.errors import InvalidParameter

if TYPE_CHECKING:
    from fedsynth.proof.sheet import ProofSheet


def prove(run: Path, /, *, extract: tuple[Path, ...] = (), identity: tuple[str, ...] = (), json_: bool = False) -> int:
    r"""Recompute a run's privacy cost and check its records.

    Prints the proof sheet: for each noisy answer that was released, the question, its sensitivity, its noise and its
    privacy cost for one person, all recomputed from the questions asked and compared with the run's ledger, in which
    the server recorded them. With --extract, the sites' own records of their charges are compared too; a site makes its
    extract with `fedsynth account --extract RUN`. Without extracts, the sheet relies on the server's records
    alone.

    Exit codes: 0 everything agrees, 8 something does not.

    Examples:

      fedsynth prove federation/runs/2026-11-21-a1b2c3

      fedsynth prove run --extract north.json --identity north=5f0c...

    Parameters
    ----------
    run
        Folder of a finished run: that of `fedsynth simulate`, or runs/NAME in the folder of a federation.
    extract
        File with a site's own charges of this run, made there by `fedsynth account --extract`; repeat it for
        several sites. Without it, only the server's records are compared.
    identity
        Public identity key of a site as NAME=KEY (64 hex digits), obtained from the site itself: its --extract must be
        signed with it. Repeat it for several sites. Without it, the key is printed for you to compare.
    """
    sheet = prove_run(run, extract, dict(map(_identity, identity)))
    say(json_, sheet.to_json(), sheet.text)
    return 8 if sheet.problems else 0


def prove_run(folder: Path, extracts: Sequence[Path] = (), known: Mapping[str, bytes] | None = None) -> ProofSheet:
    """Recompute the privacy cost of every answer that a finished run released, and compare it with the run's ledger.

    ``folder`` is the run's directory; ``extracts`` and ``known`` are the ``extracts`` and ``identities`` of
    :func:`~fedsynth.proof.prove.prove`. Raises :class:`~fedsynth.errors.FedsynthError` for a folder without a run, or
    without one of its files.
    """
    from fedsynth.proof.extract import AccountExtract
    from fedsynth.proof.prove import prove as proof_of
    from fedsynth.runs.folder import RunFolder

    run = RunFolder(folder)
    run.require(run.run_file, run.schema_file, run.ledger_file, run.transcript)
    return proof_of(
        run.transcript,
        run.ledger_file,
        run.schema,
        run.trust,
        run.job.budget,
        extracts=[AccountExtract.load(path) for path in extracts],
        identities=known,
    )


def _identity(text: str) -> tuple[str, bytes]:
    name, _, key = text.partition("=")
    try:
        public = bytes.fromhex(key)
    except ValueError:
        public = b""
    if not name or len(public) != 32:
        raise InvalidParameter(
            f"--identity {text}: expected NAME=KEY, with the 64 hexadecimal digits of the site's key"
        )
    return name, public
