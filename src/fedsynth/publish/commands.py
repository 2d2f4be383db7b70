"""The commands ``fedsynth publish`` and ``fedsynth verify``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from fedsynth.cli.adapter import Fields
from fedsynth.cli.options import say
from fedsynth.errors import InvalidParameter, number_of
from fedsynth.publish.details import PackDetails


def publish(
    run: Path,
    /,
    *,
    to: Path,
    details: Annotated[partial[PackDetails], Fields(optional=True)],
    extract: tuple[Path, ...] = (),
    signature: tuple[Path, ...] = (),
    force: bool = False,
    json_: bool = False,
) -> None:
    r"""Make a pack of a run that a stranger can verify.

    The pack is a folder with the synthetic table and its codebook, what is known of it, the statement for lawyers,
    entries for catalogues, what was agreed, and all that the proof of the privacy cost needs. Its manifest has the
    SHA-256 of each file; the coordinator's key signs that of a run at real sites. What was computed from rows without
    noise, and keys, stay in the run's folder. Runs with a drafted schema, noise from a seed or without a guarantee are
    refused.

    What you say of the table (--title, --publisher, --licence and the like), extracts and signatures are kept in the
    run's folder: the same command without them makes the same pack again.

    Examples:

      fedsynth publish run --to pack --title "Stays 2024, synthetic" \
        --publisher "Health Office" --licence CC-BY-4.0

      fedsynth publish federation/runs/2026-11-21-a1b2c3 --to pack \
        --extract north.json --extract south.json

    Parameters
    ----------
    run
        Folder of a finished run: that of `fedsynth simulate`, or runs/NAME in the folder of a federation.
    to
        Folder for the pack, written whole or not at all; it must not exist yet, except with --force.
    extract
        File with a site's own charges of this run, made there by `fedsynth account --extract`; repeat it for several
        sites. Without it, the pack relies on the server's records alone.
    signature
        File with a site's signature under this pack, made there by `fedsynth account --sign`; repeat it for several
        sites. Without it, only the coordinator signs.
    force
        Replace an earlier pack. Without it, the command stops if --to exists.
    """
    from fedsynth.publish.pack import publish_run

    made = publish_run(run, to, details.keywords, extracts=extract, signatures=signature, force=force)
    facts = {
        "pack": str(made.pack),
        "files": [entry.path for entry in made.manifest.files],
        "manifest": made.manifest.digest,
        "signed": list(made.signed),
        "confirmed": list(made.sheet.confirmed),
    }
    said = f"signed by {', '.join(made.signed)}" if made.signed else "UNSIGNED: a simulated run has no keys"
    lines = [
        f"{number_of(len(made.manifest.files), 'file')} in {made.pack}/, manifest {made.manifest.digest}",
        f"{said}; privacy cost {made.sheet.basis}",
        f"Next: fedsynth verify {made.pack}",
    ]
    say(json_, facts, "\n".join(lines))


def verify(
    place: Path, /, *, extract: tuple[Path, ...] = (), identity: tuple[str, ...] = (), json_: bool = False
) -> int:
    r"""Verify a pack or a run, offline: files, signatures, privacy cost.

    Of a pack, each file is compared with the manifest, and the manifest with its signatures. Then the proof sheet is
    printed, of a run's folder it alone: for each noisy answer that was released, the question, its sensitivity, its
    noise and its privacy cost for one person, all recomputed from the questions asked and compared with the ledger, in
    which the server recorded them. Sites' own records of their charges (extracts) are compared too; a site makes its
    extract with `fedsynth account --extract RUN`. Without extracts, the sheet relies on the server's records alone.

    Exit codes: 0 everything agrees, 8 something does not.

    Examples:

      fedsynth verify pack --identity coordinator=5f0c...

      fedsynth verify federation/runs/2026-11-21-a1b2c3

      fedsynth verify run --extract north.json --identity north=5f0c...

    Parameters
    ----------
    place
        Folder of a pack, or of a finished run: that of `fedsynth simulate`, or runs/NAME in the folder of a federation.
    extract
        File with a site's own charges of this run, made there by `fedsynth account --extract`; repeat it for
        several sites. Without it, only the extracts in a pack are compared.
    identity
        Public identity key of a site, or of the coordinator, as NAME=KEY (64 hex digits), obtained from that party
        itself: what it signed must be signed with it, and under a pack it must have signed something. Repeat it for
        several. Without it, keys are printed for you to compare.
    """
    from fedsynth.publish.verify import verify as verification_of

    verification = verification_of(place, extract, dict(map(_identity, identity)))
    say(json_, verification.to_json(), verification.text)
    return 8 if verification.problems else 0


def _identity(text: str) -> tuple[str, bytes]:
    name, _, key = text.partition("=")
    try:
        public = bytes.fromhex(key)
    except ValueError:
        public = b""
    if not name or len(public) != 32:
        raise InvalidParameter(f"--identity {text}: expected NAME=KEY, with the 64 hexadecimal digits of the key")
    return name, public
