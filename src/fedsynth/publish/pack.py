"""Making a pack: what may be published at all, its files, the manifest over them, and signatures.

Publishing the same run folder again gives the same bytes: the date, the sites' extracts and all signatures lie in the
run's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.files import folder_made_whole, write_whole
from fedsynth.keys import Keys
from fedsynth.proof.extract import AccountExtract
from fedsynth.proof.prove import prove_run
from fedsynth.proof.sheet import ProofSheet
from fedsynth.publish.details import keep_details, read_details
from fedsynth.publish.manifest import COORDINATOR, MANIFEST, Manifest, PackSignature
from fedsynth.publish.parts import gathered
from fedsynth.publish.source import PackSource
from fedsynth.publish.verify import verify_pack
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.state import load_coordinator

_log = logging.getLogger(__name__)
_Signed = TypeVar("_Signed", AccountExtract, PackSignature)


@dataclass(frozen=True)
class Publication:
    """A pack that was made: its folder, its manifest, who signed it, and the proof sheet in it."""

    pack: Path
    manifest: Manifest
    signed: tuple[str, ...]
    sheet: ProofSheet


def publish_run(
    folder: Path,
    to: Path,
    given: Mapping[str, Any],
    *,
    extracts: Sequence[Path] = (),
    signatures: Sequence[Path] = (),
    force: bool = False,
) -> Publication:
    """Make the pack of the run in ``folder`` as the new folder ``to``, whole or not at all.

    ``given`` is what a person says of it now (:class:`~fedsynth.publish.details.PackDetails`); what was said before,
    and ``extracts`` and ``signatures`` that were given before, are kept in the run's folder. With ``force``, an earlier
    pack is replaced. Raises :class:`FedsynthError` for a run that must not be published, and says why, for records that
    contradict each other, and for a missing key; :class:`~fedsynth.errors.InvalidParameter` if a detail is missing, and
    for what a stranger signed.
    """
    _refuse_existing(to, force)
    run = RunFolder(folder)
    run.require(run.run_file, run.schema_file, run.ledger_file, run.transcript, run.table_file, run.model_file)
    run.require(run.about_file)
    if reasons := obstacles(run):
        raise FedsynthError(f"{folder} must not be published: {'; '.join(reasons)}")
    details = read_details(run, given)
    sites = {} if run.job.deployment is None else run.job.deployment.identities
    accounts = _kept(run.extracts, extracts, AccountExtract, lambda extract: extract.site)
    signing = _kept(run.signatures, signatures, PackSignature, lambda signature: signature.name)
    parties = {extract.site for extract in accounts} | {signature.name for signature in signing}
    if strangers := sorted(parties - {COORDINATOR, *sites}):
        raise InvalidParameter(
            f"{', '.join(map(ascii, strangers))}: no site of this run has that name; leave out what it signed"
        )
    sheet = prove_run(run, accounts, sites)
    if sheet.problems:
        raise FedsynthError(
            f"{folder} must not be published: its records contradict each other ({'; '.join(sheet.problems)}); "
            f"`fedsynth verify {folder}` shows the sheet"
        )
    source = PackSource(run, details, sheet, tuple(accounts))
    files = gathered(source)
    manifest, signed = _signed(run, files, sheet.run, signing)
    with folder_made_whole(to) as pack:
        for path, content in {**files, MANIFEST: manifest.to_json()}.items():
            (pack / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(pack / path, content)
        for signature in signed:
            (pack / signature.file).parent.mkdir(exist_ok=True)
            write_whole(pack / signature.file, signature.to_json())
    keep_details(run, details)
    for extract in accounts:
        _keep(run.extracts / f"{extract.site}.json", extract.to_json())
    for signature in signed:
        _keep(run.signatures / f"{signature.name}.json", signature.to_json())
    return Publication(to, manifest, tuple(signature.name for signature in signed), sheet)


def obstacles(run: RunFolder) -> list[str]:
    """Return why a run must not be published, each as a clause with what to do; nothing for one that may be."""
    stated = run.ledger.statement or {}
    reasons = list(_obstacles(run, stated))
    if not reasons and not stated.get("publishable"):
        reasons.append(f"its statement says {stated.get('headline')}; run the job again without what that names")
    return reasons


def _obstacles(run: RunFolder, stated: Mapping[str, Any]) -> Iterator[str]:
    if not stated.get("private"):
        yield "it has no guarantee (NOT PRIVATE); run the job again with a finite epsilon and noise in every release"
    if run.job.seed is not None or stated.get("seeded"):
        yield "its noise comes from a seed, so that whoever learns the seed can remove it; run the job again without"
    if run.schema.drafted or stated.get("schema_draft"):
        yield (
            "its schema is a draft, whose bounds and lists come from rows; replace them by public facts, delete the "
            "line draft = true, and run the job again"
        )
    by_rows = run.made.get("split") == "by other rows" or ("split_seed" in run.made and "split" not in run.made)
    if by_rows or stated.get("looks_at_other_rows"):
        yield (
            "the published split of its rows over sites depends on other rows; run the job again with --partition iid, "
            "quantity:A, label-skew:A, column:NAME or values:NAME"
        )
    for part in stated.get("foreign", ()):
        if not part.get("accepted"):
            yield f"its guarantee rests on {part.get('place')}, which nobody accepted; run it again with --unproved"


def sign_pack(pack: Path, name: str, keys: Keys, coordinator: bytes) -> PackSignature:
    """Sign a pack as the party called ``name``, after it was verified; the signature is written into the pack.

    ``coordinator`` is the identity key (32 bytes) of the coordinator that the party knows. Raises
    :class:`FedsynthError` for a pack that cannot be verified.
    """
    known = {COORDINATOR: coordinator, name: keys.identity}
    verification = verify_pack(pack, identities=known, demanded=(COORDINATOR,))
    if verification.problems:
        raise FedsynthError(f"{pack} is not signed, since it cannot be verified: {'; '.join(verification.problems)}")
    signature = PackSignature.of(name, Manifest.load(pack), keys)
    write_whole(pack / signature.file, signature.to_json())
    return signature


def _signed(
    run: RunFolder, files: Mapping[str, bytes], name: str, known: Sequence[PackSignature]
) -> tuple[Manifest, list[PackSignature]]:
    """Return the manifest of the files and all signatures of it: the coordinator's own, and those that are known.

    A simulated run has no keys, and its manifest no signatures. The coordinator's key is that of the federation's
    folder; a copy of the run elsewhere is published with the signature that it has.
    """
    if run.job.deployment is None:
        return Manifest.of(files, name, ""), []
    kept = next((signature for signature in known if signature.name == COORDINATOR), None)
    if kept is not None and (manifest := Manifest.of(files, name, kept.identity)).digest == kept.manifest:
        own = kept
    else:
        keys = load_coordinator(run.path.resolve().parent.parent)
        manifest = Manifest.of(files, name, keys.identity.hex())
        own = PackSignature.of(COORDINATOR, manifest, keys)
    others = []
    for signature in known:
        if signature.name == COORDINATOR:
            continue
        if signature.manifest == manifest.digest:
            others.append(signature)
        else:
            _log.warning("the signature of %s is of another pack and is left out; ask for a new one", signature.name)
    return manifest, [own, *others]


def _kept(folder: Path, given: Sequence[Path], kind: type[_Signed], party: Callable[[_Signed], str]) -> list[_Signed]:
    """Return the signed files in a folder of the run, replaced by those that were ``given`` now, in order of names."""
    newest = {file.stem: kind.load(file) for file in sorted(folder.glob("*.json"))}
    for file in given:
        signed = kind.load(file)
        if not signed.signed:
            raise FedsynthError(f"{file}: its signature is wrong; get the file again from {party(signed)!a}")
        newest[party(signed)] = signed
    return [newest[name] for name in sorted(newest)]


def _keep(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, content)


def _refuse_existing(to: Path, force: bool) -> None:
    if to.exists() and not (force and (to / MANIFEST).is_file()):
        raise FedsynthError(
            f"{to} exists and is no pack, so it is not replaced; choose another folder"
            if force
            else f"{to} exists; choose another --to, or pass --force to replace an earlier pack"
        )
