"""Verifying a pack or a run's folder without a network: files, signatures, and the proof of the privacy cost."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsynth.answers.pack import table_files
from fedsynth.errors import FedsynthError, number_of, reason_of
from fedsynth.proof.extract import AccountExtract
from fedsynth.proof.prove import prove_run
from fedsynth.proof.sheet import ProofSheet
from fedsynth.publish.manifest import COORDINATOR, MANIFEST, SIGNATURES, Manifest, PackSignature
from fedsynth.publish.parts import PROOF
from fedsynth.runs.folder import RunFolder


@dataclass(frozen=True)
class Verification:
    """What verifying a pack or a run found.

    ``manifest`` is that of a pack, ``None`` for a run's folder, and ``signed`` are the parties with a valid signature
    under it, each with its key (hex). ``sheet`` is the proof of the run, ``None`` if it could not be recomputed.
    ``problems`` are all contradictions, those of the sheet included, and ``notes`` the comparisons left to the reader.
    """

    manifest: Manifest | None
    signed: Mapping[str, str]
    sheet: ProofSheet | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What was found, to read; the verdict is the last line."""
        lines = [] if self.sheet is None else [self.sheet.text]
        own = set() if self.sheet is None else set(self.sheet.problems)
        problems = [f"PROBLEM: {problem}" for problem in self.problems if problem not in own]
        if self.manifest is None:
            return "\n".join([*lines, *problems])
        signed = ", ".join(f"{name} (key {key[:16]}...)" for name, key in self.signed.items()) or "nobody"
        files = number_of(len(self.manifest.files), "file")
        lines += [
            "",
            f"Pack of {files}, manifest {self.manifest.digest}; signed by {signed}.",
            *(f"note: {note}" for note in self.notes),
            *problems,
            "",
            self.verdict,
        ]
        return "\n".join(lines).lstrip("\n")

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.problems:
            return f"NOT VERIFIED, for {number_of(len(self.problems), 'reason')} above"
        if self.manifest is not None and not self.signed:
            return (
                "The pack is whole and UNSIGNED: whoever gave it to you could have made it anew. Compare the digest of "
                "its manifest with its publisher."
            )
        return "The pack is whole, and its privacy cost is as it says."

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values: the proof sheet's, with what the manifest and signatures say."""
        sheet = {} if self.sheet is None else self.sheet.to_json()
        facts = {**sheet, "problems": list(self.problems), "verified": not self.problems}
        if self.manifest is None:
            return facts
        return {
            **facts,
            "manifest": self.manifest.digest,
            "files": len(self.manifest.files),
            "signed": dict(self.signed),
            "notes": [*sheet.get("notes", ()), *self.notes],
            "verdict": self.verdict,
        }


def verify(folder: Path, extracts: Sequence[Path] = (), identities: Mapping[str, bytes] | None = None) -> Verification:
    """Verify a pack, or the folder of a run.

    ``extracts`` are files of further account extracts of sites; ``identities`` are public identity keys (32 bytes) by
    the name of a site or "coordinator", from a source other than the folder: what these parties sign must be signed
    with them, and under a pack each must have signed the manifest or an extract. Raises
    :class:`~fedsynth.errors.FedsynthError` for a folder that is neither, and for unreadable files of a run.
    """
    known = dict(identities or {})
    given = [AccountExtract.load(path) for path in extracts]
    if (folder / MANIFEST).is_file():
        return verify_pack(folder, given, known, demanded=tuple(known))
    sites = {name: key for name, key in known.items() if name != COORDINATOR}
    run = RunFolder(folder)
    if not run.is_run:
        raise FedsynthError(f"{folder} holds no {MANIFEST} and no run.toml; give a pack, or the folder of a run")
    sheet = prove_run(run, given, sites)
    wrong = [*_other_coordinators(given, known[COORDINATOR].hex())] if COORDINATOR in known else []
    return Verification(None, {}, sheet, (*sheet.problems, *wrong))


def verify_pack(
    pack: Path,
    extracts: Sequence[AccountExtract] = (),
    identities: Mapping[str, bytes] | None = None,
    demanded: Sequence[str] = (),
) -> Verification:
    """Verify a pack: every file against the manifest, every signature, and the proof of the run in it.

    ``demanded`` names parties that must have signed the manifest or an extract; the others are as in :func:`verify`.
    """
    manifest, known = Manifest.load(pack), dict(identities or {})
    problems = list(manifest.problems(pack))
    signed: dict[str, str] = {}
    for file in sorted((pack / SIGNATURES).glob("*")):
        try:
            signature = PackSignature.load(file)
        except (FedsynthError, OSError) as error:
            problems.append(reason_of(error))
            continue
        wrong = list(_faults(signature, file, manifest, known))
        problems += wrong
        if not wrong:
            signed[signature.name] = signature.identity
    if manifest.coordinator and COORDINATOR not in signed and not (pack / SIGNATURES / f"{COORDINATOR}.json").exists():
        problems.append("the signature of coordinator is missing")
    sheet = None
    try:
        run = RunFolder(pack / PROOF)
        packed = [AccountExtract.load(file) for file in sorted((pack / PROOF / "extracts").glob("*.json"))]
        given = {extract.site for extract in extracts}
        accounts = [*(account for account in packed if account.site not in given), *extracts]
        sheet = prove_run(run, accounts, {name: key for name, key in known.items() if name != COORDINATOR})
        problems += [*sheet.problems, *_strangers(run, signed, accounts), *_other_tables(pack, run)]
        problems += _other_coordinators(accounts, manifest.coordinator)
        if run.job.deployment is not None and not manifest.coordinator:
            problems.append("the run is one of real sites, and the manifest names no coordinator that signs it")
        signers = {*signed, *(extract.site for extract in accounts)}
    except (FedsynthError, OSError) as error:
        problems.append(f"the proof cannot be recomputed: {reason_of(error)}")
        signers = set(signed)
    problems += [
        f"{name} has signed neither this pack nor an extract in it"
        for name in demanded
        if name not in signers and not any(problem.startswith(f"the signature of {name}") for problem in problems)
    ]
    notes = [
        f"the key of {name} is {key}; compare it with the one that the consortium gave you, or pass --identity"
        for name, key in signed.items()
        if name not in known
    ]
    return Verification(manifest, signed, sheet, tuple(problems), tuple(notes))


def _faults(signature: PackSignature, file: Path, manifest: Manifest, known: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what is wrong with a signature under a pack."""
    name = f"the signature of {file.stem}"
    if signature.name != file.stem:
        yield f"{name} is that of {signature.name}"
    elif not signature.signed:
        yield f"{name} is wrong: it was changed, or made by another key"
    elif signature.manifest != manifest.digest:
        yield f"{name} is of another manifest: the manifest was changed after it was signed"
    elif signature.name in known and known[signature.name].hex() != signature.identity:
        yield f"{name} is by another key than the one that you gave: {signature.identity}"
    elif signature.name == COORDINATOR and signature.identity != manifest.coordinator:
        yield f"{name} is by another key than the manifest says: {signature.identity}"


def _other_tables(pack: Path, run: RunFolder) -> Iterator[str]:
    """Yield which noisy tables of a pack are not those that the run released, by its transcript."""
    folder = pack / "answers" / "tables"
    released = table_files(run.path) if folder.is_dir() else {}
    for name, content in released.items():
        file = folder / name
        same = file.is_file() and file.read_bytes() == content
        if not same and file.is_file() and file.suffix == ".parquet":  # other versions write other bytes
            same = pd.read_parquet(file).equals(pd.read_parquet(io.BytesIO(content)))
        if not same:
            yield f"answers/tables/{name} is not what the run released"


def _strangers(run: RunFolder, signed: Mapping[str, str], extracts: Sequence[AccountExtract]) -> Iterator[str]:
    """Yield which sites signed a pack or an extract with another key than that by which their answers were known."""
    deployment = run.job.deployment
    peers = {} if deployment is None else deployment.peers
    for name, key in signed.items():
        if name != COORDINATOR and peers.get(name) != key:
            yield f"the signature of {name} is not by the key of a site of this run"
    for extract in extracts:
        if deployment is not None and peers.get(extract.site) != extract.identity:
            yield f"extract of {extract.site}: it is not by the key of a site of this run"


def _other_coordinators(extracts: Sequence[AccountExtract], coordinator: str) -> Iterator[str]:
    """Yield which sites answered another coordinator than the one that signs; nothing if nobody signs."""
    for extract in extracts:
        if coordinator and not extract.coordinator.startswith(coordinator):
            yield f"extract of {extract.site}: the site answers another coordinator than the key {coordinator[:16]}..."
