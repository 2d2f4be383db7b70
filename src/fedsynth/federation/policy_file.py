"""Parser of the ``[policy]`` section of a site's file, which its data steward writes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.names import TRUSTS
from fedsynth.federation.policy import Policy
from fedsynth.federation.trust import Trust, settable
from fedsynth.plugins import named
from fedsynth.privacy.cost import Budget, Unit

ANY = "any"
_KEYS = (
    *("budget", "per_run", "exact", "unit", "size_is_public", "trusts", "verbs", "kinds", "schemas"),
    *("plans", "methods", "min_cohort", "largest_message", "largest_answer", "largest_stored"),
    *("answer_every", "timed_rows", "keep_runs_days", "coordinator_sees_exact_counts"),
)
_SIZES = ("largest_message", "largest_answer", "largest_stored", "timed_rows")
_DIGEST = re.compile("[0-9a-f]{64}")
_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def policy_from_toml(section: Mapping[str, Any], folder: Path = Path()) -> Policy:
    """Return the policy that the ``[policy]`` section of a site's file describes; docs/policy.md lists its keys.

    ``section`` is that section as ``tomllib`` read it. ``folder`` is where relative paths of plan files start: the
    folder of the site's file. Raises :class:`InvalidParameter` for anything unknown, missing, of the wrong type or in
    contradiction to the rest, and for ``plans = "any"`` without ``per_run``; :class:`Unsupported` for an unknown trust
    model; and the errors of :meth:`Agreement.load <fedsynth.federation.agreement.Agreement.load>`. A budget without
    limit (``epsilon = inf``) is refused unless ``exact = true`` is written beside it.
    """
    _known("[policy]", section, _KEYS)
    for required in ("budget", "trusts"):
        if required not in section:
            raise InvalidParameter(f"[policy] has no {required}; docs/policy.md shows one to start from")
    trusts = _table("[policy.trusts]", section["trusts"])
    if not trusts:
        raise InvalidParameter(f"[policy.trusts] is empty; name at least one of {', '.join(TRUSTS)}")
    exact = _boolean("exact", section.get("exact", False))
    budget = _budget("[policy.budget]", section["budget"])
    per_run = _budget("[policy.per_run]", section["per_run"]) if "per_run" in section else None
    if not exact and any(math.isinf(limit.epsilon) for limit in (budget, per_run) if limit is not None):
        raise InvalidParameter(
            "[policy] has a budget without limit, which protects nobody; give epsilon a number, or, for rows that need "
            "no protection at all, write exact = true beside it"
        )
    plans = section.get("plans", {})
    if plans == ANY and per_run is None and not exact:
        limit = f"{{ epsilon = {budget.epsilon:g}, delta = {budget.delta:g} }}"
        raise InvalidParameter(
            f'[policy] has plans = "any", so it must limit what one run may cost: write per_run = {limit} into '
            "[policy], or less. After a backup is restored, each run that was open is charged up to this limit"
        )
    optional: dict[str, Any] = {
        **{key: _list(key, section[key]) for key in ("verbs",) if key in section},
        **{key: _whole(key, section[key]) for key in ("min_cohort", *_SIZES) if key in section},
        **{key: _number(key, section[key]) for key in ("answer_every", "keep_runs_days") if key in section},
    }
    return Policy(
        budget=budget,
        trusts={name: trust_named(name, _table(f"[policy.trusts.{name}]", of)) for name, of in trusts.items()},
        per_run=per_run,
        schemas=frozenset(_digest("schemas", one) for one in _list("schemas", section.get("schemas", []))),
        unit=_unit(section.get("unit", {})),
        exact=exact,
        kinds=_kinds(_table("[policy.kinds]", section.get("kinds", {}))),
        size_is_public=_boolean("size_is_public", section.get("size_is_public", False)),
        coordinator_sees_exact_counts=_boolean(
            "coordinator_sees_exact_counts", section.get("coordinator_sees_exact_counts", False)
        ),
        plans={} if plans == ANY else _plans(_table("[policy.plans]", plans), folder),
        any_plan=plans == ANY,
        methods=frozenset(_list("methods", section.get("methods", []))),
        **optional,
    )


def trust_named(name: str, numbers: Mapping[str, Any]) -> Trust:
    """Return the trust model called ``name`` (:data:`~fedsynth.federation.names.TRUSTS`) with these settings.

    ``numbers`` are the settings by name, such as ``min_honest``. Raises :class:`Unsupported` for an unknown name, and
    :class:`InvalidParameter` for unknown or invalid settings.
    """
    if name not in TRUSTS:
        raise Unsupported(f"no trust model named {name!r}; {nearest(name, TRUSTS)}")
    found = named(TRUSTS[name])
    known = settable(found)
    _known(f"the trust {name!r}", numbers, known)
    for one, value in numbers.items():
        if type(value) not in (int, float):
            raise InvalidParameter(f"the trust {name!r} needs a number for {one}, not {value!r}")
    trust: Trust = found(**numbers)
    return trust


def _plans(section: Mapping[str, Any], folder: Path) -> dict[str, Agreement]:
    """Load the approved plans by digest; raise an error for a file whose digest is not the approved one."""
    plans = {}
    for digest, file in section.items():
        plan = Agreement.load(folder / str(file))
        if plan.digest != _digest("plans", digest):
            raise InvalidParameter(
                f"{file} is not the plan that was approved: its digest is {plan.digest}, the policy says {digest}; "
                "put the approved file back, or read the new one (fedsynth plan --show) and approve its digest"
            )
        plans[digest] = plan
    return plans


def _kinds(section: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes of other packages' kinds of questions, by name; they are imported only when needed."""
    for kind, place in section.items():
        if not isinstance(place, str) or not _PLACE.fullmatch(place):
            raise InvalidParameter(
                f"[policy.kinds] {kind} = {place!r} does not name a class; write package.module:Class"
            )
    return dict(section)


def _budget(where: str, section: Any) -> Budget:
    fields = _table(where, section)
    _known(where, fields, ("epsilon", "delta"))
    numbers = []
    for name in ("epsilon", "delta"):
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidParameter(f"{where} needs the number {name}; for example epsilon = 1.0, delta = 1e-6")
        numbers.append(float(value))
    return Budget(*numbers)


def _unit(section: Any) -> Unit:
    fields = _table("[policy] unit", section)
    _known("[policy] unit", fields, ("rows", "sites"))
    for name, value in fields.items():
        if _whole(f"unit {name}", value) < 1:
            raise InvalidParameter(f"[policy] unit {name} must be at least 1, not {value}")
    return Unit(**fields)


def _known(where: str, section: Mapping[str, Any], known: Collection[str]) -> None:
    if unknown := sorted(set(section) - set(known)):
        hint = nearest(unknown[0], known, "it has") if known else "it has none"
        raise InvalidParameter(f"{where} has no setting {', '.join(unknown)}; {hint}")


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidParameter(f"{where} must be a table of entries, not {value!r}")
    return value


def _list(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidParameter(f"[policy] {key} must be a list of texts, not {value!r}")
    return tuple(value)


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidParameter(f"[policy] {key} must be true or false, not {value!r}")
    return value


def _whole(key: str, value: Any) -> int:
    if type(value) is not int:
        raise InvalidParameter(f"[policy] {key} must be a whole number, not {value!r}")
    return value


def _number(key: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise InvalidParameter(f"[policy] {key} must be a number that is not negative, not {value!r}")
    return float(value)


def _digest(key: str, value: str) -> str:
    if not _DIGEST.fullmatch(value):
        raise InvalidParameter(f"[policy] {key}: {value!r} is not a digest; give all 64 hexadecimal digits")
    return value
