"""Secrets never print themselves: not as fields of objects, and not as values of variables in a traceback.

With one printed line of a federation under a trusted server, its noise can be drawn again, and taken off.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.attacks.world import deployed, frame
from tests.world import BUDGET, SCHEMA, TRUSTS, tables

import fedsynth
from fedsynth import keys
from fedsynth.deploy.host.state import open_site, site_secret
from fedsynth.federation import simulate, trusted
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import Trust
from fedsynth.keys import Keys, SecretBytes
from fedsynth.methods.aim import AIM
from fedsynth.methods.oneshot import OneShot
from fedsynth.privacy.book import Book
from fedsynth.privacy.noise import KeyedBits
from fedsynth.secure import masking
from fedsynth.servers.links import Listener, Meetings, card_of
from fedsynth.servers.trust import ThreeServers

HOME = Path(fedsynth.__file__).parent
SEED = 1
OWNERS = ("site-000", "site-001", "site-002", "coordinator", "server", *(f"trust server {at}" for at in range(3)))
ALL: dict[str, Trust] = {**TRUSTS, "three-servers": ThreeServers()}


def secret_of(owner: str) -> bytes:
    """Return the secret of a party of a simulation with a seed, as plain bytes."""
    return bytes(simulate._secret(SEED, owner))


def known_secrets() -> set[bytes]:
    """Return the secrets of all parties, and the keys derived from them."""
    secrets = [secret_of(owner) for owner in OWNERS]
    return {
        *secrets,
        *(bytes(Keys(secret).seed) for secret in secrets),
        *(bytes(Keys(one)._private) for one in secrets),
    }


def forms(secret: bytes) -> Iterator[str]:
    """Yield what a secret, or the start of it, looks like in a text."""
    start = secret[:12]
    yield from (start.hex(), start.hex().upper(), base64.b64encode(secret).decode()[:14], repr(start)[2:-1])
    yield ", ".join(map(str, start))


def check(texts: Iterable[tuple[str, str]], secrets: Iterable[bytes]) -> None:
    """No text shows a secret; ``texts`` are pairs of what they are of and the text."""
    shapes = {form for secret in secrets for form in forms(secret)}
    pattern = re.compile("|".join(map(re.escape, shapes)))
    for of, text in texts:
        assert not pattern.search(text), f"the text of {of} shows a secret"


def children(value: object) -> Iterator[object]:
    """Yield what a value holds, as far as fedsynth made it."""
    match value:
        case dict():
            yield from (*value.keys(), *value.values())
        case list() | tuple() | set() | frozenset() | deque():
            yield from value
        case functools.partial():
            yield from (value.func, value.args, value.keywords)
        case types.FunctionType():
            yield from (cell.cell_contents for cell in value.__closure__ or ())
        case types.MethodType():
            yield from (value.__self__, value.__func__)
        case _ if type(value).__module__.startswith("fedsynth"):
            yield from vars(value).values() if hasattr(value, "__dict__") else ()
            names = getattr(type(value), "__struct_fields__", ()) or getattr(type(value), "__slots__", ())
            yield from (getattr(value, name) for name in names if hasattr(value, name))


def reachable(root: object) -> Iterator[object]:
    """Yield everything that can be reached from an object, each once."""
    seen, left = {id(root): root}, [root]
    while left:
        value = left.pop()
        yield value
        for child in children(value):
            if id(child) not in seen:
                seen[id(child)] = child  # kept, so that no other object gets its number
                left.append(child)


def texts_of(root: object) -> Iterator[tuple[str, str]]:
    """Yield all texts of all that can be reached."""
    for value in reachable(root):
        if type(value).__module__.startswith("fedsynth") or isinstance(value, dict | list | tuple):
            yield type(value).__qualname__, f"{value!r} {value!s} {value}"


def frames_in(source: traceback.StackSummary) -> Iterator[tuple[str, str]]:
    """Yield fedsynth's frames of a stack with their variables, as debuggers and error services print them."""
    for one in source:
        if Path(one.filename).is_relative_to(HOME):
            yield (
                f"{one.name}, line {one.lineno}",
                "\n".join(f"{name} = {said}" for name, said in (one.locals or {}).items()),
            )


def probed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that fills with the stacks at the calls which handle keys, noise, rows and accounts."""
    found: list[tuple[str, str]] = []
    calls: dict[str, int] = {}

    def watch(owner: Any, name: str) -> None:
        called: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(called)
        def noted(*arguments: Any, **named: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            if calls[name] <= 4 or not calls[name] % 97:
                stack = traceback.walk_stack(sys._getframe(1))
                found.extend(frames_in(traceback.StackSummary.extract(stack, capture_locals=True)))
            return called(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    for owner, name in (
        *((KeyedBits, "words"), (keys, "sign"), (keys, "derive"), (keys, "encrypted"), (masking, "mask")),
        *((Counts, "answer"), (Book, "begin"), (Book, "store"), (trusted, "add_noise"), (Keys, "unseal")),
    ):
        watch(owner, name)
    return found


def run_under(trust: str) -> Federation:
    """Return a federation of three sites, with known secrets, after a method has spent its budget."""
    federation = federate(tables(3), SCHEMA, BUDGET, trust=ALL[trust], seed=SEED)
    (AIM() if trust == "three-servers" else OneShot()).fit(federation)
    return federation


@pytest.mark.parametrize("trust", ALL)
def test_nothing_of_a_federation_prints_a_secret(trust):
    federation = run_under(trust)
    secrets = known_secrets()
    assert {type(value) for value in reachable(federation)} >= {Federation, Keys, Book}
    held = {bytes(value) for value in reachable(federation) if type(value) is SecretBytes}
    assert held & secrets
    check(texts_of(federation), secrets | held)


@pytest.mark.parametrize("trust", ALL)
def test_no_traceback_with_the_values_of_variables_shows_a_secret(trust, monkeypatch):
    found = probed(monkeypatch)
    run_under(trust)
    assert len(found) > 50
    assert any("statistic" in of for of, _ in found)  # inside the sites as well
    check(found, known_secrets())


@pytest.mark.parametrize("seed", [SEED, None])
def test_an_error_while_a_federation_is_made_shows_no_secret(seed, tmp_path):
    made: list[bytes] = []

    def broken(sites: Any) -> Any:
        made.extend(bytes(site.secret) for site in sites)
        raise ValueError("no transport")

    with pytest.raises(ValueError, match="no transport") as caught:
        federate(
            tables(3),
            SCHEMA,
            BUDGET,
            trust=ALL["trusted"],
            seed=seed,
            transport=broken,
            transcript=tmp_path / "messages",
        )
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    texts = list(frames_in(told.stack))
    assert any("secrets" in text for _, text in texts)
    kept = simulate.secret_file(tmp_path / "messages")
    if seed is None:
        made.append(msgspec.json.decode(kept.read_bytes(), type=simulate._Kept).secret)
    check(texts, [*made, *(known_secrets() if seed else ())])


def test_a_deployed_site_prints_no_secret(tmp_path):
    config = deployed(tmp_path / "north", frame())
    site = open_site(config)
    secret = bytes(site_secret(config))
    check(texts_of(site), [secret, bytes(Keys(secret).seed)])
    assert "secret" not in repr(site.rows)
    assert repr(site_secret(config)) == "<32 secret bytes>"


def test_a_compute_servers_parts_print_no_secret():
    secrets = [bytes([7 + at]) * 32 for at in range(3)]
    cards = tuple(card_of(secret, "127.0.0.1:9") for secret in secrets)
    meetings = Meetings(cards, 0, secrets[0])
    check(texts_of(meetings), secrets)
    listener = object.__new__(Listener)
    vars(listener).update(cards=cards, position=0, secret=secrets[0], serve=print, failed=print)
    assert "cards" in repr(listener)
    check([("Listener", repr(listener))], secrets)


# ---------------------------------------------------------------------------------------------------------------------
# Every class of the package

_NAMES = re.compile(r"(^|_)(secrets?|salts?|passwords?|passphrase|tokens?|private|seeds?|key|own|held|code|mask)($|_)")
_PUBLIC = {  # fields with such names that hold nothing secret
    "CellRecord.key": "the digest of the settings of a run of a benchmark",
    "CellRecord.code": "the version of fedsynth that made it",
    "SiteView.code": "a site's answer: refused, spent, failed",
    "SiteReplied.code": "the same",
    "Reply.code": "the same",
    "Failure.code": "the same",
    "StoredAnswer.code": "the same",
    "JoinRequest.node_key": "a public key",
    "Member.node_key": "a public key",
    "CoordinatorSection.key": "a public key",
    "LookupSection.key": "the name of a column",
    "FlowerSection.key": "the name of a file",
    "AuditRow.key": "the digest of a question",
    "Charge.key": "the digest of a question",
    "AccountCharge.key": "the digest of a question",
    "ChargedQuestion.key": "the digest of a question",
}


def classes() -> Iterator[type]:
    """Yield every class of the package."""
    for module in pkgutil.walk_packages(fedsynth.__path__, "fedsynth."):
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:  # of an extra that is not installed here
            continue
        for _, kind in inspect.getmembers(loaded, inspect.isclass):
            if kind.__module__ == module.name:
                yield kind


def fields_shown(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields that the automatic text of a class shows, with their types."""
    hints = getattr(kind, "__annotations__", {})
    if dataclasses.is_dataclass(kind):
        if kind.__dataclass_params__.repr and "__repr__" in vars(kind):  # type: ignore[attr-defined]
            yield from ((one.name, str(one.type)) for one in dataclasses.fields(kind) if one.repr)
    elif issubclass(kind, msgspec.Struct):
        if kind.__repr__ is msgspec.Struct.__repr__:
            yield from ((name, str(hints.get(name, ""))) for name in kind.__struct_fields__)
    elif issubclass(kind, tuple) and kind.__repr__.__doc__ == "Return a nicely formatted representation string":
        yield from ((name, str(hints.get(name, ""))) for name in getattr(kind, "_fields", ()))


def test_no_field_with_the_name_of_a_secret_is_in_the_text_of_its_object():
    """A field of bytes or text that is called secret, salt, key, seed or the like has no text, or is listed above."""
    shown = {
        f"{kind.__qualname__}.{name}"
        for kind in classes()
        for name, hint in fields_shown(kind)
        if _NAMES.search(name) and "SecretBytes" not in hint and re.search(r"[bB]ytes|str|_Hex|_Key|Wide|Private", hint)
    }
    assert shown - set(_PUBLIC) == set()
