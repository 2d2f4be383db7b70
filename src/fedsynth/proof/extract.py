"""Account extracts: a site's charges of one run, signed by the site, to check what the server reports of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from fedsynth.files import load_json
from fedsynth.keys import Keys, content_verified
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Cost, Neighbours, Unit

_CONTEXT = "account extract"
_Key = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]
_Pair = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]


class AccountCharge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One charge in a site's account: the question and its cost to one person, for the unit that it states.

    ``key`` (hex) is the SHA-256 of the coordinator's public keys and the question's digest; ``row`` the number of the
    charge's row in the site's audit log. A charge without a key is a write-off: an account restored from a backup may
    lack later charges, so the site then charges every open run in full, up to the run's limit.
    """

    key: _Key
    verb: str
    kind: str
    step: int
    cost: Cost
    row: int


class AccountExtract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The charges of one run in a site's account, signed with the site's identity key.

    ``row`` and ``chain`` are the number and the hash of the last row of the site's audit log when the extract was made.
    ``total`` is what all these charges cost one person of the account's ``unit`` under its neighbour relation
    (``neighbours``); if questions stated less, it is more than their costs. Keys, hash and ``signature`` are in
    hexadecimal; the signature is empty before :func:`sign_extract`.
    """

    site: str
    run: str
    coordinator: _Pair
    charges: tuple[AccountCharge, ...]
    total: Cost
    unit: Unit
    neighbours: Neighbours
    row: int
    chain: _Key
    identity: _Key
    signature: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{128})?$")] = ""

    @property
    def signed(self) -> bool:
        """Whether the owner of the key ``identity`` signed all other fields; it does not show whose key that is."""
        return content_verified(bytes.fromhex(self.identity), self.signature, _CONTEXT, self)

    def to_json(self) -> bytes:
        """Return the content of the extract's file (indented JSON, UTF-8)."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def load(cls, path: Path) -> AccountExtract:
        """Read an extract from a file, without verifying it; raises :class:`FedsynthError` for any other file."""
        mend = "have the site print it with this version: fedsynth account --extract"
        return load_json(path, cls, "an account extract", mend)


def extract(account: Book, secret: bytes, site: str, run: str, coordinator: bytes) -> AccountExtract:
    """Return a site's signed extract of what the run named ``run`` was charged in its account.

    ``secret`` is the site's own (32 bytes), and ``coordinator`` are the public keys of the coordinator whose requests
    it answers. An extract shows questions by digest and their costs, as the site's audit log does, and no values of
    rows.
    """
    row, chain = account.head()
    found = [charge for charge in account.charges() if charge["run"] == run and charge["row"] <= row]
    last: dict[str, Any] = found[-1] if found else {"run_total": {}, "unit": {}, "neighbours": "add-remove"}
    charges = tuple(
        AccountCharge(
            charge.get("key", ""),
            charge.get("verb", ""),
            charge.get("kind", ""),
            charge.get("step", 0),
            msgspec.convert(charge.get("quoted", charge["cost"]), Cost),
            charge["row"],
        )
        for charge in found
    )
    content = AccountExtract(
        site,
        run,
        coordinator.hex(),
        charges,
        msgspec.convert(last["run_total"], Cost),
        msgspec.convert(last["unit"], Unit),
        last["neighbours"],
        row,
        chain.hex(),
        "",
    )
    return sign_extract(content, secret)


def sign_extract(content: AccountExtract, secret: bytes) -> AccountExtract:
    """Return an extract with the identity and the signature of the site that has this ``secret`` (32 bytes)."""
    keys = Keys(secret)
    content = msgspec.structs.replace(content, identity=keys.identity.hex())
    return msgspec.structs.replace(content, signature=keys.sign_content(_CONTEXT, content))
