"""Requests and replies, and how they become bytes.

Rule 1: a message is JSON values and arrays; nothing in it is ever executed or unpickled. Rule 2: the digest
covers the whole request, so two requests that differ anywhere get different noise; where one question takes
several messages, noise and charge belong to the question, which is all of the request but its turn. Rule 3: of a
site's error only the class leaves, and a reason that the policy alone explains; never the text of an exception
that may quote a row. Rule 4: the length of a confidential reply says nothing of its numbers: TLS does not hide
lengths, and compressed counts of an emptier table are shorter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.archive import pack, unpack
from fedsynth.privacy.release import Release, release_from_json, release_to_json
from fedsynth.schema import Schema

_ARRAY = "__array__"


@dataclass(frozen=True, eq=False)
class Request:
    """One question to one site, or to several that share it.

    ``step`` numbers the questions of a ``run``; ``params`` are JSON values and arrays, public by definition,
    and shared by all sites that are asked; ``own`` are further parameters of the addressed site alone.
    ``attempt`` makes a question that failed for good a new one. A question under a trust that needs several
    messages is sent once a ``turn``, each time with the public protocol data of that ``stage``. ``plan`` is the
    digest of the plan that the run keeps to, where the sites asked for one.
    """

    run: str
    step: int
    verb: str
    task: str
    release: Release
    trust: str
    schema_digest: str
    params: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 0
    turn: int = 0
    stage: Mapping[str, Any] = field(default_factory=dict)
    plan: str = ""
    _memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Bring parameters into the form that they have after a trip over the wire."""
        if "params" not in self._memo:
            self._memo["params"] = {name: _canonical(value) for name, value in self.params.items()}
        object.__setattr__(self, "params", self._memo["params"])
        object.__setattr__(self, "own", _canonical(self.own))
        object.__setattr__(self, "stage", _canonical(self.stage))

    def addressed(self, own: Mapping[str, Any]) -> Request:
        """Return the same question with parameters of one site's own; what is shared is prepared and hashed once."""
        return replace(self, own=own)

    def at(self, turn: int, stage: Mapping[str, Any]) -> Request:
        """Return the message of a later turn of the same question."""
        return replace(self, turn=turn, stage=stage)

    def again(self, attempt: int) -> Request:
        """Return the question anew: another digest, so fresh noise and another charge; attempt 0 is this one."""
        if attempt == self.attempt:
            return self
        return replace(self, attempt=attempt, _memo={"params": self._memo["params"]})

    @cached_property
    def question(self) -> str:
        """SHA-256 (hex) over every field but turn and stage: what is charged once, and what noise is bound to."""
        if "digest" not in self._memo:
            self._memo["digest"] = _digest({**self._head(), "own": {}})
        return _digest({"shared": self._memo["digest"], "own": self.own})

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over every field; that of the question where it takes one message."""
        if not self.turn and not self.stage:
            return self.question
        return _digest({"question": self.question, "turn": self.turn, "stage": self.stage})

    def to_bytes(self) -> bytes:
        """Return the message."""
        arrays: dict[str, NDArray[Any]] = {}
        later = {"turn": self.turn, "stage": dict(self.stage)} if self.turn or self.stage else {}
        return pack(_flatten({**self._head(), **later}, arrays), arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        """Return the request that :meth:`to_bytes` wrote."""
        meta, arrays = unpack(data)
        head = _unflatten(meta, arrays)
        return cls(**{**head, "release": release_from_json(head["release"])})

    def prepared(self, prepare: Any, schema: Schema) -> Any:
        """Return ``prepare(schema, **params)``, computed once per request however many sites share it."""
        if prepare not in self._memo:
            self._memo[prepare] = prepare(schema, **self.params)
        return self._memo[prepare]

    def _head(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "step": self.step,
            "verb": self.verb,
            "task": self.task,
            "release": release_to_json(self.release),
            "trust": self.trust,
            "schema_digest": self.schema_digest,
            "params": dict(self.params),
            "own": dict(self.own),
            **({"attempt": self.attempt} if self.attempt else {}),  # absent from first attempts, whose digests stay
            **({"plan": self.plan} if self.plan else {}),  # likewise
        }


@dataclass(frozen=True, eq=False)
class Reply:
    """One site's answer: a flat int64 array, or the class of the error that kept it from answering.

    ``parts`` are the arrays of a turn that asks for something else than the statistic. ``confidential`` marks
    an answer that only a trusted server may hold; it is never written to disk.
    """

    site: str
    digest: str
    values: NDArray[np.int64] | None = None
    error: str = ""
    reason: str = ""
    confidential: bool = False
    parts: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the message; whoever sees the length of a confidential one must not learn from it."""
        head = {
            "site": self.site,
            "digest": self.digest,
            "error": self.error,
            "reason": self.reason,
            "confidential": self.confidential,
        }
        arrays = {f"part.{name}": array for name, array in self.parts.items()}
        held = arrays if self.values is None else {**arrays, "values": self.values}
        return pack(head, held, compress=not self.confidential)

    @classmethod
    def from_bytes(cls, data: bytes) -> Reply:
        """Return the reply that :meth:`to_bytes` wrote."""
        head, arrays = unpack(data)
        parts = {name.removeprefix("part."): array for name, array in arrays.items() if name.startswith("part.")}
        return cls(values=arrays.get("values"), parts=parts, **head)


def _digest(value: Any) -> str:
    arrays: dict[str, NDArray[Any]] = {}
    sha = hashlib.sha256(json.dumps(_flatten(value, arrays), sort_keys=True, allow_nan=False).encode())
    for name, array in sorted(arrays.items()):
        sha.update(f"{name} {array.dtype.str} {array.shape}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def _canonical(value: Any) -> Any:
    """Return JSON values for scalars, lists and mappings, and read-only contiguous arrays for arrays."""
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise TypeError("arrays of objects do not travel; send numbers")
        view = array.view()
        view.flags.writeable = False
        return view
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): _canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a {type(value).__name__} does not travel; send JSON values and arrays")


def _flatten(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return ``value`` as pure JSON, moving its arrays into ``arrays`` in a fixed order."""
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays):06d}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, dict):
        return {name: _flatten(value[name], arrays) for name in sorted(value)}
    if isinstance(value, list):
        return [_flatten(item, arrays) for item in value]
    return value


def _unflatten(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {name: _unflatten(item, arrays) for name, item in value.items()}
    if isinstance(value, list):
        return [_unflatten(item, arrays) for item in value]
    return value
