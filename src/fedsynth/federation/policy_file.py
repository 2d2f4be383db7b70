"""The ``[policy]`` section of a site's file, which its data steward writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.policy import Policy
from fedsynth.federation.trust import Trust, settable
from fedsynth.plugins import named
from fedsynth.privacy.cost import ONE_ROW, Budget, Unit, in_full, require_delta
from fedsynth.settings import Settings, as_toml, read_settings
from fedsynth.trusts import TRUSTS

_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="a digest, all 64 hexadecimal digits")]
_Place = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", description="a class, written as package.module:Class"
    ),
]
_Size = Annotated[int, Meta(ge=1)]


class BudgetLimit(Settings, frozen=True):
    """A limit on the privacy cost to one person; ``delta = 0`` is pure differential privacy."""

    epsilon: float
    """Epsilon of the guarantee; ``inf`` only with ``exact = true``."""
    delta: float
    """Delta of the guarantee, at least 0 and below 1."""


class PolicySection(Settings, frozen=True):
    """The section ``[policy]`` of ``site.toml``: what a site answers (:class:`~fedsynth.federation.policy.Policy`)."""

    budget: BudgetLimit
    """Limit on everything that the site ever answers, for one person."""
    trusts: dict[str, dict[str, Any]]
    """The accepted trust models by name, each with this site's settings of it."""
    per_run: BudgetLimit | None = None
    """Limit on what the site answers to one run. Required with `plans = "any"`: after a restored backup each run that
    was open is charged up to it."""
    exact: bool = False
    """Allow releases without noise, which gives up every guarantee."""
    weak_delta: bool = False
    """The yes that a limit with a delta above 0.01 needs: so large a delta would allow that share of the rows to be
    published as they are."""
    unit: Unit = ONE_ROW
    """Smallest unit of protection that a request may state: how many rows at a site, and how many sites, one person may
    have. A request that protects less is refused."""
    size_is_public: bool = False
    """Declare the number of rows public: the guarantee hides which rows there are, not how many."""
    coordinator_sees_exact_counts: bool = False
    """The yes that the trust trusted needs: the coordinator gets exact counts over any columns, and can rebuild single
    rows from them."""
    verbs: tuple[str, ...] = Policy.verbs
    """The accepted verbs: sum, deposit, and those about this site alone, each, choose and average."""
    kinds: Mapping[str, _Place] = {}
    """Kinds of questions of other packages by name, each with its class; it is imported when such a question comes."""
    schemas: frozenset[_Digest] = frozenset()
    """Digests of schemas, among which that of the site's rows must be. Default: any."""
    plans: Mapping[_Digest, str] | Literal["any"] = {}
    """Files of the approved plans by digest, or "any". Without either, the site answers nothing."""
    methods: frozenset[str] = frozenset()
    """Methods of the runs that are accepted, of which any approved plan must be too. Default: any."""
    min_cohort: Annotated[int, Meta(ge=1)] = Policy.min_cohort
    """Runs, and approved plans, of fewer sites are not accepted."""
    largest_message: _Size = Policy.largest_message
    """Largest message that is read, in bytes; a larger one is refused unread."""
    largest_answer: _Size = Policy.largest_answer
    """Largest number of cells of an answer."""
    largest_stored: _Size = Policy.largest_stored
    """Most bytes that the questions of one run may make the site store; all open runs together may take 16 times as
    much."""
    answer_every: Annotated[float, Meta(ge=0, le=10**6)] = Policy.answer_every
    """Replies leave at whole multiples of this time after the message came, in seconds; 0: at once."""
    timed_rows: _Size = Policy.timed_rows
    """Public bound on the number of rows, by which the time of replies to training is computed."""
    keep_runs_days: Annotated[float, Meta(ge=1, le=10**6)] = Policy.keep_runs_days
    """Days after which a run that asked nothing more is closed."""

    def policy(self, folder: Path) -> Policy:
        """Return the policy; relative paths of plan files start at ``folder``.

        Raises :class:`InvalidParameter` for settings in contradiction to each other, such as ``plans = "any"`` without
        ``per_run``, a budget without limit without ``exact = true`` or a large delta without ``weak_delta = true``;
        :class:`Unsupported` for an unknown trust model;
        and the errors of :meth:`Agreement.load <fedsynth.federation.agreement.Agreement.load>`.
        """
        if not self.trusts:
            raise InvalidParameter(f"[policy.trusts] is empty; name at least one of {', '.join(TRUSTS)}")
        limits = [self.budget, *([self.per_run] if self.per_run else [])]
        if not self.exact and any(math.isinf(limit.epsilon) for limit in limits):
            raise InvalidParameter(
                "[policy] has a budget without limit, which protects nobody; give epsilon a number, or, for rows that "
                "need no protection at all, write exact = true beside it"
            )
        if self.plans == "any" and self.per_run is None and not self.exact:
            limit = f"{{ epsilon = {in_full(self.budget.epsilon)}, delta = {in_full(self.budget.delta)} }}"
            raise InvalidParameter(
                f'[policy] has plans = "any", so it must limit what one run may cost: write per_run = {limit} into '
                "[policy], or less. After a backup is restored, each run that was open is charged up to this limit"
            )
        for stated in limits:
            require_delta(stated.delta, weak_delta=self.weak_delta)
        same = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("budget", "per_run", "trusts", "plans", "weak_delta")
        }
        budget, *per_run = (Budget(limit.epsilon, limit.delta) for limit in limits)
        return Policy(
            budget=budget,
            per_run=per_run[0] if per_run else None,
            trusts={name: trust_named(name, settings) for name, settings in self.trusts.items()},
            plans={} if self.plans == "any" else dict(_approved(self.plans, folder)),
            any_plan=self.plans == "any",
            **same,
        )


def policy_from_toml(section: Mapping[str, Any], folder: Path = Path()) -> Policy:
    """Return the policy that the ``[policy]`` section of a site's file describes, as ``tomllib`` read it.

    Raises :class:`InvalidParameter` for anything unknown, missing or of the wrong type, and the errors of
    :meth:`PolicySection.policy`.
    """
    return read_settings(PolicySection, section, spelled=lambda path: as_toml(["policy", *path])).policy(folder)


def trust_named(name: str, numbers: Mapping[str, Any]) -> Trust:
    """Return the trust model called ``name`` (:data:`~fedsynth.trusts.TRUSTS`) with these settings.

    Raises :class:`Unsupported` for an unknown name, and :class:`InvalidParameter` for unknown or invalid settings.
    """
    if name not in TRUSTS:
        raise Unsupported(f"no trust model named {name!r}; {nearest(name, TRUSTS)}")
    found = named(TRUSTS[name].place)
    known = settable(found)
    if unknown := sorted(set(numbers) - set(known)):
        hint = nearest(unknown[0], known, "it has") if known else "it has none"
        raise InvalidParameter(f"the trust {name!r} has no setting {', '.join(unknown)}; {hint}")
    for one, value in numbers.items():
        if type(value) not in (int, float):
            raise InvalidParameter(f"the trust {name!r} needs a number for {one}, not {value!r}")
    trust: Trust = found(**numbers)
    return trust


def _approved(files: Mapping[str, str], folder: Path) -> Iterator[tuple[str, Agreement]]:
    """Yield the approved plans by digest; raise an error for a file whose digest is not the approved one."""
    for digest, file in files.items():
        plan = Agreement.load(folder / file)
        if plan.digest != digest:
            raise InvalidParameter(
                f"{file} is not the plan that was approved: its digest is {plan.digest}, the policy says {digest}; "
                "put the approved file back, or read the new one (fedsynth plan --show) and approve its digest"
            )
        yield digest, plan
