"""What the attacks need: three columns, sites with rows in them, and a coordinator that signs any bytes it likes.

An attack's test asserts the safe behaviour. The coordinator of these tests holds its own keys, messages, and what the
protocol tells it; where a test looks at rows, it does so to judge the attack.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pytest
import tomli_w
from numpy.typing import NDArray
from tests.world import request_of

from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.state import answer, create_state, site_secret
from fedsynth.encoding import encode
from fedsynth.errors import FedsynthError
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import Event, PlainAnswer
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.policy import VERBS, Policy
from fedsynth.federation.query import AnyQuery, Counts
from fedsynth.federation.quote import Quote
from fedsynth.federation.site import Site, rows_digest
from fedsynth.federation.trust import Trust
from fedsynth.federation.wire import (
    AuditPosition,
    Code,
    Reply,
    ReplyHead,
    Request,
    open_reply,
    read_reply,
    write_answer,
    write_head,
    write_reply,
)
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget, Norms
from fedsynth.privacy.release import Gaussian
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.secure.server import Aggregator
from fedsynth.secure.site import SecureSum

DIAGNOSES = ("a", "b", "c", "d", "rare")
SCHEMA = Schema((Categorical("sex", ("f", "m")), Categorical("diagnosis", DIAGNOSES), Numeric("age", 0, 100, bins=10)))
SEX, DIAGNOSIS, AGE = 0, 1, 2
BUDGET = Budget(1.0, 1e-6)
CHEAP = Gaussian(1e-4)
TARGET = {"sex": "m", "diagnosis": "rare", "age": 97.0}
"""The record that an attacker looks for; nobody else has its diagnosis."""

COORDINATOR = Keys(b"c" * 32)

# ---------------------------------------------------------------------------------------------------------------------
# Rows


def frame(rows: int = 40, seed: int = 0, target: bool = False) -> pd.DataFrame:
    """Return rows of which the last, with ``target``, is the record that an attacker looks for."""
    rng = np.random.default_rng(seed)
    others = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], rows),
            "diagnosis": rng.choice(DIAGNOSES[:-1], rows),
            "age": rng.integers(0, 90, rows).astype(float),
        }
    )
    return pd.concat([others, pd.DataFrame([TARGET])], ignore_index=True) if target else others


def table(rows: int = 40, seed: int = 0, target: bool = False) -> Table:
    """Return the rows of :func:`frame`, encoded."""
    return encode(SCHEMA, frame(rows, seed, target))


# ---------------------------------------------------------------------------------------------------------------------
# Sites


def site(
    rows: Table | None = None,
    *,
    name: str = "north",
    trust: Trust | None = None,
    account: Book | None = None,
    secret: bytes = bytes(range(32)),
    **policy: Any,
) -> Site:
    """Return a site whose steward accepts one trust (local noise if none is given), every verb, and any plan."""
    accepted = trust or LocalNoise()
    options = {"verbs": VERBS, "any_plan": True, "coordinator_sees_exact_counts": accepted.name == "trusted", **policy}
    rules = Policy(options.pop("budget", BUDGET), {accepted.name: accepted}, **options)
    held = table() if rows is None else rows
    digest = rows_digest(secret, held.digest)
    return Site(name, held, rules, account or Book(), secret, COORDINATOR.public, digest)


def secure_sites(number: int, trust: SecureSum, folder: Path | None = None) -> list[Site]:
    """Return sites that know each other's identity keys and accept secure sums only."""
    secrets = {f"site-{k}": bytes([k + 1]) * 32 for k in range(number)}
    agreed = trust.with_roster({name: Keys(secret).identity for name, secret in secrets.items()})
    return [
        site(
            table(20 + 5 * k, k),
            name=name,
            trust=agreed,
            secret=secret,
            account=None if folder is None else Book(folder / f"{name}.sqlite"),
        )
        for k, (name, secret) in enumerate(secrets.items())
    ]


def rows_of(of: Site) -> Table:
    assert isinstance(of.rows, Table)
    return of.rows


def deployed(
    folder: Path,
    rows: pd.DataFrame | bytes,
    schema: Schema = SCHEMA,
    source: Mapping[str, Any] | None = None,
    file: str = "rows.csv",
    /,
    **policy: Any,
) -> SiteConfig:
    """Return a deployed site with its rows, or bytes of any kind, in a CSV or Parquet file."""
    folder.mkdir(parents=True)
    schema.save(folder / "schema.toml")
    if isinstance(rows, bytes):
        (folder / file).write_bytes(rows)
    elif file.endswith(".csv"):
        rows.to_csv(folder / file, index=False)
    else:
        rows.to_parquet(folder / file, index=False)
    limits = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
    content = {
        "site": {"name": "north"},
        "source": {"data": file, "schema": "schema.toml", "rows_are_persons": True, **(source or {})},
        "coordinator": {"key": COORDINATOR.public.hex()},
        "policy": {
            "budget": limits,
            "per_run": policy.get("budget", limits),
            "trusts": {"local": {}},
            "verbs": list(VERBS),
            "plans": "any",
            **policy,
        },
        "flower": {"superlink": "127.0.0.1:9"},
    }
    (folder / "site.toml").write_text(tomli_w.dumps(content))
    os.utime(folder / file, (0, 0))
    config = load_site_config(folder)
    create_state(config)
    return config


# ---------------------------------------------------------------------------------------------------------------------
# The coordinator's messages


def question(query: AnyQuery | None = None, **fields: Any) -> Request:
    """Return a question that an honest coordinator could ask: by default for the counts of one column."""
    usual = {"run": "run", "step": 0, "verb": "sum", "release": CHEAP, "schema": SCHEMA.digest}
    return request_of(counts((SEX,)) if query is None else query, **{**usual, **fields})


def counts(*cliques: tuple[int, ...]) -> Counts:
    """Return the question for contingency tables over the schema's own bins."""
    return Counts.of(len(SCHEMA.columns), cliques)


def sealed(
    request: Request, seen: AuditPosition | None = None, to: str = "north", agreement: bytes | None = None
) -> bytes:
    """Return the bytes that travel to a site: whatever the body is, the coordinator signs it, always in one attempt.

    The run's agreement goes beside each request, or what is given in its place.
    """
    beside = request.agreement.data if agreement is None else agreement
    head = write_head(COORDINATOR, to, request, beside, seen or AuditPosition(), bytes(8))
    return head + request.body + beside + request.weights


def signed(by: bytes, site: str, asked: ReplyHead, code: Code, *content: bytes, sealed: bool = False) -> bytes:
    """Return a reply in the name of a site, signed with any seed, with any content."""
    return write_reply(by, site, asked, write_answer(code, AuditPosition(), *content, sealed=sealed))


def answer_in(reply: bytes) -> bytes:
    """Return the answer in a reply, as the site's account stores it."""
    asked, answer = open_reply(reply, "", None)
    return bytes.fromhex(asked.message) + answer


def read(of: Site, request: Request, data: bytes) -> Reply:
    return read_reply(data, request, of.name, Keys(of.secret).identity, COORDINATOR.unseal)


def reply_of(of: Site, request: Request, seen: AuditPosition | None = None) -> bytes:
    """Send one message to a site as bytes, and return the bytes that come back."""
    return of.answer(sealed(request, seen, of.name)).data


def ask(of: Site, request: Request) -> Reply:
    """Send one message to a site as bytes, and return what comes back as bytes."""
    return read(of, request, reply_of(of, request))


def ask_deployed(config: SiteConfig, request: Request, seen: AuditPosition | None = None) -> Reply:
    """Send one message to a deployed site, and return what its transport carries back."""
    (data,) = answer(config, [sealed(request, seen, config.name)]).replies
    return read_reply(data, request, config.name, Keys(site_secret(config)).identity, COORDINATOR.unseal)


def values(reply: Reply) -> NDArray[np.int64]:
    assert isinstance(reply.answer, PlainAnswer), reply
    return reply.answer.values


# ---------------------------------------------------------------------------------------------------------------------
# Messages made by hand


def head_of(request: Request) -> dict[str, Any]:
    """Return the head of a question as the values that stand in it."""
    length = int.from_bytes(request.frame[:4], "little")
    head: dict[str, Any] = msgspec.msgpack.decode(request.frame[4 : 4 + length])
    return head


def framed(head: bytes, *arrays: bytes) -> bytes:
    """Return a frame of any bytes: a head, and the bytes of arrays."""
    padded = [head + bytes(-(4 + len(head)) % 8), *(data + bytes(-len(data) % 8) for data in arrays)]
    return len(head).to_bytes(4, "little") + b"".join(padded)


def forged(frame: bytes, turn: int = 0, event: bytes = b"", agreement: Agreement | None = None) -> Request:
    """Return the message that asks the question of any frame, with any event."""
    return of_body(len(frame).to_bytes(8, "little") + frame + turn.to_bytes(8, "little") + event, agreement)


def with_head(request: Request, change: Mapping[str, Any], *arrays: bytes) -> Request:
    """Return a message whose question has other entries in its head, which no constructor has looked at."""
    frame = framed(msgspec.msgpack.encode({**head_of(request), **change}), *arrays)
    return forged(frame, agreement=request.agreement)


def of_body(body: bytes, agreement: Agreement | None = None) -> Request:
    """Return a message of any body, in the place (run, step, turn) that the body tells, if a head can say it."""
    message = replace(question(), agreement=agreement or question().agreement)
    with contextlib.suppress(FedsynthError):
        message = Request.read(body, lambda head: message.agreement)
    message = replace(message, turn=message.turn if message.turn < 2**31 else 0, event=None)
    message.body = body  # a cached property
    return message


# ---------------------------------------------------------------------------------------------------------------------
# Secure sums


class Said(NamedTuple):
    """A message of a secure sum to one site, and its reply."""

    message: Request
    reply: Reply


def aggregator(sites: Sequence[Site], asked: Request) -> Aggregator:
    """Return the server's end of a secure sum."""
    trust = sites[0].policy.trusts["secure"]
    assert isinstance(trust, SecureSum)
    names = [of.name for of in sites]
    noise = Quote.of(asked, SCHEMA, trust).noise
    return trust.aggregation(asked.question, noise, Norms(1, 1), names, lambda exact: pytest.fail("no noise"))


def converse(
    sites: Sequence[Site],
    asked: Request,
    until: int,
    *,
    event: Callable[[int, str, Event | None], Event | None] = lambda turn, name, event: event,
) -> list[dict[str, Said]]:
    """Play the server of a secure sum through turn ``until``; return messages and replies of each turn by site."""
    doors = {of.name: of for of in sites}
    session = aggregator(sites, asked)
    turns: list[dict[str, Said]] = []
    while session.turn < until and (events := session.ask()):
        turn = {}
        for name, plain in events.items():
            message = asked.at(session.turn, event(session.turn, name, plain))
            turn[name] = Said(message, ask(doors[name], message))
        turns.append(turn)
        for name, said in turn.items():
            if said.reply.answer is not None:
                session.receive(name, said.reply.answer)
    return turns


# ---------------------------------------------------------------------------------------------------------------------
# Programs


def found_by(program: str, *arguments: object) -> dict[str, Any]:
    """Run a module of this folder as a process, and return the JSON that it prints."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    command = [sys.executable, "-m", f"tests.attacks.{program}", *map(str, arguments)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Replies that a relay rewrites

PARTS = {
    "request": 7,
    "message": 39,
    "signature": 71,
    "code": 128,
    "sealed": 129,
    "padding": 130,
    "row": 136,
    "chain": 151,
    "position's signature": 207,
    "body": 240,
    "end": -1,
}
"""The parts of a reply in which a relay can change a byte, and where."""


def rewritten(data: bytes, part: str) -> bytes:
    """Return a reply with another byte in one of its :data:`PARTS`."""
    at = PARTS[part] % len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
