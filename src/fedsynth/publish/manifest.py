"""The manifest of a pack: every file with size and SHA-256, and the signatures of the parties under it.

Rule 1: a signature is of the manifest's digest, which covers the content of all other files. Signatures themselves are
not in the manifest, since parties sign one after another: they lie in ``signatures``, one file for each party. Rule 2:
``coordinator`` is the key of the one party that must sign, empty where nobody has keys (a simulated run): a pack that
lost this signature is not one that never had it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec

import fedsynth
from fedsynth.files import load_json
from fedsynth.keys import Keys, canonical, content_verified

FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"
SIGNATURES = "signatures"
COORDINATOR = "coordinator"  # a name that no site can have
_PURPOSE = "pack"
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Key = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9-]{0,30}\Z")]
_Path = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*\Z")]
_Printable = Annotated[str, msgspec.Meta(max_length=200, pattern=r"\A[ -~]*\Z")]


class PackedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a pack: its path below the pack's folder, its size in bytes, and its SHA-256 (hex)."""

    path: _Path
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: _Digest

    @classmethod
    def of(cls, path: str, content: bytes) -> PackedFile:
        """Return the entry of a file with this content."""
        return cls(path, len(content), hashlib.sha256(content).hexdigest())


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``.

    ``fedsynth`` is the version that made the pack, ``run`` the run's name, and ``coordinator`` the public identity key
    (hex) with which the manifest must be signed, empty if nobody signs. ``files`` are in the order of their paths.
    """

    fedsynth: _Printable
    run: _Printable
    coordinator: _Key
    files: tuple[PackedFile, ...]
    format: Literal[1] = FORMAT

    @classmethod
    def of(cls, files: Mapping[str, bytes], run: str, coordinator: str) -> Manifest:
        """Return the manifest of files, which are given by their paths."""
        entries = tuple(PackedFile.of(path, files[path]) for path in sorted(files))
        return cls(fedsynth.__version__, run, coordinator, entries)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the manifest's canonical form: what the parties sign."""
        return hashlib.sha256(canonical(self)).hexdigest()

    def to_json(self) -> bytes:
        """Return the content of the manifest's file (indented JSON, UTF-8)."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def load(cls, pack: Path) -> Manifest:
        """Read the manifest of a pack; raises :class:`~fedsynth.errors.FedsynthError` for any other file."""
        mend = "get the pack again from its publisher, or verify it with the fedsynth that made it"
        return load_json(pack / MANIFEST, cls, "the manifest of a pack", mend, FORMAT)

    def problems(self, pack: Path) -> Iterator[str]:
        """Yield a sentence for each file of a pack's folder that is missing, was changed, or is not listed.

        Files are looked at where they lie: a link, also in place of a folder, is none.
        """
        listed = [entry.path for entry in self.files]
        if listed != sorted(set(listed)):
            yield "the manifest lists a file twice, or its files out of order"
        for entry in self.files:
            path, file = entry.path, pack / entry.path
            if _linked(pack, path) or not file.is_file():
                yield f"{path} is missing"
            elif (actual := PackedFile.of(path, file.read_bytes())) != entry:
                before = f"{entry.sha256[:12]}, {entry.size} bytes"
                yield f"{path} was changed: its SHA-256 is {actual.sha256[:12]}, {actual.size} bytes, and was {before}"
        for file in sorted(pack.rglob("*")):
            within = PurePosixPath(file.relative_to(pack).as_posix())
            own = str(within) == MANIFEST or (len(within.parts) == 2 and within.parts[0] == SIGNATURES)
            if (file.is_symlink() or not file.is_dir()) and not own and str(within) not in listed:
                yield f"{within} was added: the manifest does not list it"


def _linked(pack: Path, path: str) -> bool:
    """Return whether a file of a pack, or a folder of it that holds the file, is a link."""
    within = PurePosixPath(path)
    return any((pack / part).is_symlink() for part in (within, *within.parents))


class PackSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signature of a party under a pack, in ``signatures/NAME.json``.

    ``name`` is a site's name or ``coordinator``, ``manifest`` the digest that is signed, and ``identity`` the public
    key (hex, Ed25519) of whoever signed; it does not show whose key that is.
    """

    name: _Name
    manifest: _Digest
    identity: _Digest
    signature: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{128})?\Z")] = ""

    @classmethod
    def of(cls, name: str, manifest: Manifest, keys: Keys) -> PackSignature:
        """Return the signature of the party with this name and these keys under a manifest."""
        content = cls(name, manifest.digest, keys.identity.hex())
        return msgspec.structs.replace(content, signature=keys.sign_content(_PURPOSE, content))

    @property
    def signed(self) -> bool:
        """Whether the owner of the key ``identity`` signed all other fields."""
        return content_verified(bytes.fromhex(self.identity), self.signature, _PURPOSE, self)

    @property
    def file(self) -> str:
        """The path of the signature's file in a pack."""
        return f"{SIGNATURES}/{self.name}.json"

    def to_json(self) -> bytes:
        """Return the content of the signature's file (indented JSON, UTF-8)."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def load(cls, path: Path) -> PackSignature:
        """Read a signature, without verifying it; raises :class:`~fedsynth.errors.FedsynthError` for another file."""
        mend = "have the party sign it again with this version: fedsynth account --sign"
        return load_json(path, cls, "a signature of a pack", mend)
