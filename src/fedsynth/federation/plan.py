"""What a site approves before a run: which questions, how many, at what price; data with a digest, never code.

Rule 1: a plan is an upper bound. What it does not name, or names at a lower price, is refused at the site. Rule 2:
an approval is of a digest, so a plan that changed anywhere is another plan. Rule 3: method and options say
what the questions are for; what protects the rows is the list of questions and its prices.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from fedsynth.errors import FedsynthError, InvalidParameter, Refused
from fedsynth.federation.wire import Request
from fedsynth.privacy.release import Budget, release_to_json

FORMAT = 1
# The server adds up its prices in another order than whoever planned; a billionth is rounding, not a leak.
_ROUNDING = 1 + 1e-9
_KEYS = ("fedsynth_plan", "method", "options", "schema_digest", "trust", "sites", "budget", "ask")
_PUBLIC_FACTS = frozenset({"name", "confidential", "turns", "assumption"})  # of every trust: no numbers of its own


@dataclass(frozen=True)
class Ask:
    """One kind of question in a plan, and how much of it one run may ask of one site.

    ``release`` is the kind of release ("gaussian"); ``times`` the largest number of questions, ``rho_each``
    and ``rho_total`` the largest price of one and of all (zCDP). A question that is sent again costs nothing and
    is not counted again.
    """

    verb: str
    task: str
    release: str
    times: int
    rho_each: float
    rho_total: float

    def __post_init__(self) -> None:
        """Refuse limits that are none."""
        if type(self.times) is not int or self.times < 1:
            raise InvalidParameter(f"a plan asks {self.task!r} at least once, not {self.times!r} times; leave it out")
        for rho in (self.rho_each, self.rho_total):
            if not (math.isfinite(rho) and rho >= 0):
                raise InvalidParameter(
                    f"a plan bounds the price of {self.task!r} by a number, not {rho}; a method that releases without "
                    "noise cannot be planned"
                )


@dataclass(frozen=True)
class Plan:
    """A run as it is put before the sites' stewards: what for, under which terms, and every kind of question.

    ``trust_numbers`` are the numbers of the trust itself (how many sites must be honest); ``sites`` is
    the number of sites that the run was planned for; ``budget`` bounds what the run may cost one record.
    """

    method: str
    options: Mapping[str, Any]
    schema_digest: str
    trust: str
    trust_numbers: Mapping[str, float]
    sites: int
    budget: Budget
    asks: tuple[Ask, ...]

    def __post_init__(self) -> None:
        """Refuse a plan that names a kind of question twice, since either limit could be meant."""
        object.__setattr__(self, "asks", tuple(self.asks))
        kinds = [(one.verb, one.task, one.release) for one in self.asks]
        if len(set(kinds)) < len(kinds):
            raise InvalidParameter("a plan names a kind of question twice; give each verb, task and release one limit")
        if type(self.sites) is not int or self.sites < 1:
            raise InvalidParameter(f"a plan needs a number of sites, not {self.sites!r}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the content, whatever the layout of the file that it came from."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True, allow_nan=False).encode()).hexdigest()

    def allow(self, request: Request) -> Ask:
        """Return the kind of question that ``request`` is; raise :class:`Refused` where the plan has none such."""
        if request.schema_digest != self.schema_digest:
            raise Refused("the approved plan is for another schema; plan again under this one and have it approved")
        if request.trust != self.trust:
            raise Refused(f"the approved plan runs under the trust {self.trust!r}, not {request.trust!r}")
        kind = release_to_json(request.release)["kind"]
        for one in self.asks:
            if (one.verb, one.task, one.release) == (request.verb, request.task, kind):
                if request.release.rho > one.rho_each * _ROUNDING:
                    raise Refused(
                        f"the approved plan pays at most rho={one.rho_each:.6g} for a {request.task!r} and this one "
                        f"asks for {request.release.rho:.6g}; plan again with a larger budget and have it approved"
                    )
                return one
        planned = ", ".join(f"{one.verb} {one.task} ({one.release})" for one in self.asks)
        raise Refused(
            f"the approved plan has no {request.verb!r} of {request.task!r} released as {kind}; it has {planned}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON (and TOML) values; the inverse of :meth:`from_json`."""
        return {
            "fedsynth_plan": FORMAT,
            "method": self.method,
            "options": dict(self.options),
            "schema_digest": self.schema_digest,
            "trust": {"name": self.trust, **self.trust_numbers},
            "sites": self.sites,
            "budget": {"epsilon": float(self.budget.epsilon), "delta": float(self.budget.delta)},
            "ask": [_ask(one) for one in self.asks],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """Return the plan that :meth:`to_json` described; raises :class:`InvalidParameter` for anything unknown."""
        if content.get("fedsynth_plan") != FORMAT:
            raise InvalidParameter(f"the file does not say fedsynth_plan = {FORMAT}; is it a plan of this version?")
        if unknown := sorted(set(content) - set(_KEYS)):
            raise InvalidParameter(f"unknown entries {unknown} in the plan; known are {', '.join(_KEYS)}")
        try:
            trust = dict(content["trust"])
            return cls(
                method=content["method"],
                options=content["options"],
                schema_digest=content["schema_digest"],
                trust=trust.pop("name"),
                trust_numbers=trust,
                sites=content["sites"],
                budget=Budget(**content["budget"]),
                asks=tuple(Ask(**one) for one in content["ask"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, FedsynthError):
                raise
            raise InvalidParameter(f"the plan is incomplete ({error}); make it with fedsynth plan") from error

    def to_toml(self) -> str:
        """Return the plan as TOML, for people to read and for sites to approve."""
        return tomli_w.dumps(self.to_json())

    @classmethod
    def from_toml(cls, text: str) -> Plan:
        """Return the plan that a TOML text describes."""
        try:
            return cls.from_json(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidParameter(f"the plan is not TOML: {error}") from error

    def save(self, path: Path) -> None:
        """Write the plan to a file, atomically."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self.to_toml(), encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Return the plan of a file."""
        return cls.from_toml(path.read_text(encoding="utf-8"))


def _ask(one: Ask) -> dict[str, Any]:
    return {**dataclasses.asdict(one), "rho_each": float(one.rho_each), "rho_total": float(one.rho_total)}


def settable(trust: Any) -> tuple[str, ...]:
    """Return the names of a trust's own numbers: its fields, beside what every trust states about itself."""
    return tuple(
        one.name
        for one in dataclasses.fields(trust)
        if one.name not in _PUBLIC_FACTS and one.default_factory is dataclasses.MISSING
    )


def numbers_of(trust: Any) -> dict[str, float]:
    """Return the numbers that a trust was made with; those left unset follow from its roster and are left out."""
    values = {name: getattr(trust, name) for name in settable(trust)}
    return {name: value for name, value in values.items() if value is not None}


def options_of(value: Any) -> Any:
    """Return a method (or another option of one) as JSON values for a plan to state; what is unset is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: options_of(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {"is": type(value).__name__, **{name: one for name, one in fields.items() if one is not None}}
    if isinstance(value, Mapping):
        return {str(name): options_of(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [options_of(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    raise InvalidParameter(f"an option of the kind {type(value).__name__} cannot be stated in a plan; use numbers")
