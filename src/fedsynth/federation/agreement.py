"""Agreements: the purpose and terms of a run, and the questions that it may ask, as one value that questions name.

Rule 1: every question names its run's agreement by digest. The agreement itself goes beside the first request to a
site, which keeps it with the run and answers the run under no other. Rule 2: an agreement with slots
(:class:`PlannedQuestion`), each for a number of questions of one kind up to one price (privacy cost), and how large
their tables may be, is a plan. It is an upper bound: a question must fit a slot of its kind with at least the
question's price, and uses up one of the slot's ``times``; if none is left, the site refuses. A repeated question uses
up nothing. Rule 3: sites approve a plan before the run, by its digest, so any change makes another plan. Rule 4: method
and options state the purpose of the questions; the list of slots is what protects the rows. Rule 5: a site charges a
planned run in zCDP (or pure epsilon), like any other. If all slots have Gaussian noise, also on samples of rows, under
``trusted`` or ``local``, the noise of the whole run is known beforehand, and the epsilon of
:attr:`Agreement.guarantee` may be below the budget's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from fedsynth.errors import FedsynthError, InvalidParameter, Refused
from fedsynth.federation.query import TABLE_KINDS, Extent
from fedsynth.federation.question import HexDigest, QuestionHead
from fedsynth.files import parse_toml, read_text, write_whole
from fedsynth.privacy.cost import ROUNDING, Budget, ProtectedChange, Unit
from fedsynth.privacy.losses import fixed_epsilon, sampled_steps
from fedsynth.privacy.release import SampledGaussian, kind_of
from fedsynth.terms import Terms
from fedsynth.trusts import TRUSTS

FORMAT: Literal[1] = 1
_Printable = Annotated[str, msgspec.Meta(max_length=200, pattern="^[ -~]*\\Z")]  # stewards read these on a terminal
_MARGIN = 1.001  # by which a planned epsilon exceeds the computed one: others compute it on other grids of losses
_LEAST_EPSILON = 1e-12  # of a guarantee that is given: a large delta alone may cover all releases


class PlannedQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Permission in a plan: a run may put one kind of question to a site ``times`` times for at most ``price`` each.

    A question fits if its ``verb`` (such as ``sum``), the ``kind`` of its query (such as ``counts``) and the kind of
    its ``release`` (such as ``gaussian``) agree. A price is a :meth:`Budget.price <fedsynth.privacy.cost.Budget.price>`
    of the plan's budget.

    ``columns``, ``order`` and ``cells`` are the most that the tables of one question may have
    (:class:`~fedsynth.federation.query.Extent`), as the method declares them. Slots for tables (counts and
    interactions) have all three, others none (``None``). They do not bound what a coordinator learns that sees exact
    counts: small tables together rebuild rows.

    ``rate``, ``multiplier`` and ``steps`` are those of the weakest release on sampled rows
    (:class:`~fedsynth.privacy.release.SampledGaussian`) that the questions may have: the largest rate and number of
    steps, and the smallest noise multiplier. Slots for such releases have all three, and others none: the price says
    too little about them to add up what the whole run costs (:attr:`Agreement.guarantee`).

    Raises :class:`InvalidParameter` for fewer than one question, for a price that is negative or not finite, and for
    missing, needless or impossible limits.
    """

    verb: _Printable
    kind: _Printable
    release: _Printable
    price: float
    times: int
    columns: int | None = None
    order: int | None = None
    cells: int | None = None
    rate: float | None = None
    multiplier: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = [limit for limit in (self.columns, self.order, self.cells) if limit is not None]
        if len(given) != (3 if self.kind in TABLE_KINDS else 0) or any(type(at) is not int or at < 1 for at in given):
            raise InvalidParameter(
                f"a slot for {' or '.join(map(repr, TABLE_KINDS))} needs columns, order and cells of at least 1, and a "
                f"slot of another kind none of them; correct the one for {self.kind!r}, or make the plan again with "
                "fedsynth plan"
            )
        sampled = {name: getattr(self, name) for name in SampledGaussian.__struct_fields__}
        if self.release == "sampled":
            try:
                msgspec.convert({"type": "sampled", **sampled}, SampledGaussian)
            except msgspec.ValidationError as error:
                raise InvalidParameter(
                    f"a slot for sampled rows needs rate, multiplier and steps ({error}); correct the one for "
                    f"{self.kind!r}, or make the plan again with fedsynth plan"
                ) from error
        elif any(limit is not None for limit in sampled.values()):
            raise InvalidParameter(
                f"the slot for {self.kind!r} is released as {self.release}, which has no rate, multiplier and steps; "
                "leave them out, or make the plan again with fedsynth plan"
            )
        if type(self.times) is not int or self.times < 1:
            raise InvalidParameter(f"a slot for {self.kind!r} must allow at least one question, not {self.times!r}")
        if not (math.isfinite(self.price) and self.price >= 0):
            raise InvalidParameter(
                f"the price of {self.kind!r} in a plan must be a finite number, not {self.price}; a run without noise "
                "cannot be planned"
            )

    @property
    def extent(self) -> Extent | None:
        """The largest tables that one question may ask for, or ``None`` for kinds that ask for no tables."""
        if self.columns is None or self.order is None or self.cells is None:
            return None
        return Extent(self.columns, self.order, self.cells)

    @property
    def weakest(self) -> SampledGaussian | None:
        """The weakest release on sampled rows that a question may have, or ``None`` for releases of other kinds."""
        if self.rate is None or self.multiplier is None or self.steps is None:
            return None
        return SampledGaussian(self.rate, self.multiplier, self.steps)


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, rename={"slots": "slot"}):
    """What a run is agreed to be: its purpose, its terms and, in a plan, the questions that it may ask.

    The terms are those of :class:`~fedsynth.terms.Terms`, with ``schema`` as the schema's digest. ``sites`` is the
    number of sites that take part (at least 1, else :class:`InvalidParameter`), and ``roster`` the digest of their
    names and keys (:func:`~fedsynth.federation.trust.roster_digest`), empty in a plan made before the sites are known.
    ``method`` and ``options`` are the method's name and settings, which state the purpose, empty where none was told.
    ``slots`` are the questions that a site may be asked (:class:`PlannedQuestion`); without any, they are not listed
    beforehand. ``answers`` are the declared questions of the run as in its settings, for people to read: what they ask
    of a site is in the slots. ``fedsynth_plan`` is the format's version.
    """

    schema: HexDigest
    trust: _Printable
    trust_options: Mapping[_Printable, int | float]
    sites: int
    public_sizes: bool
    budget: Budget
    unit: Unit
    method: _Printable = ""
    options: Mapping[str, Any] = {}
    roster: HexDigest = ""
    slots: tuple[PlannedQuestion, ...] = ()
    answers: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET
    fedsynth_plan: Literal[1] = FORMAT

    def __post_init__(self) -> None:
        limits = {(slot.verb, slot.kind, slot.release): (slot.extent, slot.weakest) for slot in self.slots}
        for slot in self.slots:
            if limits[slot.verb, slot.kind, slot.release] != (slot.extent, slot.weakest):
                differ = "columns, order or cells" if slot.weakest is None else "rate, multiplier or steps"
                raise InvalidParameter(
                    f"the slots for {slot.verb} {slot.kind} ({slot.release}) differ in {differ}; give all of them the "
                    "same, or make the plan again with fedsynth plan"
                )
        if type(self.sites) is not int or self.sites < 1:
            raise InvalidParameter(
                f"a plan needs a number of sites of at least 1, not {self.sites!r}; plan again with --sites"
            )

    @classmethod
    def of(
        cls,
        terms: Terms,
        sites: int,
        name: str = "",
        method: object = None,
        roster: str = "",
        slots: tuple[PlannedQuestion, ...] = (),
        answers: Mapping[str, Any] | None = None,
    ) -> Agreement:
        """Return the agreement of a run under ``terms``; the fields of ``method``, a dataclass, become the options."""
        options = {} if method is None else {key: of for key, of in options_of(method).items() if key != "is"}
        budget = Budget(float(terms.budget.epsilon), float(terms.budget.delta))
        asked = msgspec.UNSET  # so that an agreement without questions has no entry for them
        if answers:
            asked = msgspec.msgpack.decode(msgspec.msgpack.encode(answers))  # as a plan's file has them: lists
        return cls(
            terms.schema.digest,
            terms.trust,
            dict(terms.trust_options),
            sites,
            terms.public_sizes,
            budget,
            terms.unit,
            name,
            options,
            roster,
            slots,
            asked,
        )

    @cached_property
    def change(self) -> ProtectedChange:
        """The change of a table that every release must hide."""
        return ProtectedChange(self.unit, "replace" if self.public_sizes else "add-remove")

    @cached_property
    def data(self) -> bytes:
        """The content as bytes (msgpack), independent of the layout of its file: what goes beside a request."""
        return msgspec.msgpack.encode(self, order="deterministic")

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of :attr:`data`: what a steward approves, and questions name."""
        return hashlib.sha256(self.data).hexdigest()

    @staticmethod
    @lru_cache(maxsize=64)
    def read(data: bytes) -> Agreement:
        """Return the agreement whose :attr:`data` these bytes are; raises :class:`InvalidParameter` for any others."""
        try:
            found = msgspec.msgpack.decode(data, type=Agreement)
        except (ValueError, RecursionError) as error:
            raise InvalidParameter(f"the run's agreement is not of this version ({error})") from error
        if found.data != data:
            raise InvalidParameter("the run's agreement is not in its canonical form")
        return found

    @cached_property
    def guarantee(self) -> Budget:
        """What a run that follows the plan guarantees, which is its budget, or less by exact accounting.

        Exact accounting uses that all noise is Gaussian, partly on samples of rows. It applies to plans whose slots
        have such noise or release public facts, under trust models in which every noise is one sample of the discrete
        Gaussian, not a sum of samples from several sites. The smaller of the budget and the cost of all slots together
        bounds what the run costs (:func:`~fedsynth.privacy.losses.fixed_epsilon`), also if it stops early, and however
        its questions depend on answers: a site keeps a run to one plan.
        """
        paid, trust = [slot for slot in self.slots if slot.release != "public"], TRUSTS.get(self.trust)
        if not paid or trust is None or not trust.whole or {slot.release for slot in paid} - {"gaussian", "sampled"}:
            return self.budget
        linear = [slot for slot in paid if slot.weakest is None]
        rho = min(self.budget.rho, math.fsum(slot.price * slot.times for slot in linear)) * ROUNDING
        largest = max((slot.price for slot in linear), default=0.0) * ROUNDING
        counts: Counter[tuple[str, str, SampledGaussian]] = Counter()
        for slot in paid:
            if slot.weakest is not None:
                counts[slot.verb, slot.kind, slot.weakest] += slot.times
        steps = tuple(
            sampled_steps(release, self.unit, times, pooled=verb == "sum" and trust.pooled)
            for (verb, _, release), times in counts.items()
        )
        epsilon = fixed_epsilon(self.budget.delta, rho, largest, steps) * (_MARGIN if steps else 1)
        return Budget(min(max(epsilon, _LEAST_EPSILON), self.budget.epsilon), self.budget.delta)

    def check(self, head: QuestionHead) -> None:
        """Raise :class:`Refused` if the plan allows no question with this ``head``, whatever its price."""
        if not self.slots_for(head):
            planned = ", ".join(sorted({f"{slot.verb} {slot.kind} ({slot.release})" for slot in self.slots}))
            raise Refused(
                f"the approved plan has no {head.verb!r} of {head.kind!r} released as {kind_of(head.release)}; it has "
                f"{planned}"
            )
        asked = head.release
        for most in {slot.weakest for slot in self.slots if (slot.verb, slot.kind) == (head.verb, head.kind)}:
            if isinstance(asked, SampledGaussian) and most is not None and asked.weakest(most) != most:
                raise Refused(
                    f"the question takes {asked.steps} steps at rate {asked.rate:g} with noise multiplier "
                    f"{asked.multiplier:g}, and the approved plan allows {most.steps} at {most.rate:g} with at least "
                    f"{most.multiplier:g}; run the method that was planned, or plan again and have the plan approved"
                )

    def check_extent(self, head: QuestionHead, extent: Extent | None) -> None:
        """Raise :class:`Refused` if the tables of a question with this ``head`` are larger than its slots allow.

        A plan has the same limits in all slots of a kind (:meth:`check` finds that there is one), so that a question of
        less can always use what a question of more can.
        """
        wanted = (head.verb, head.kind, kind_of(head.release))
        for slot in self.slots:
            if (slot.verb, slot.kind, slot.release) == wanted and extent is not None and slot.extent is not None:
                for name, asked, most in zip(Extent._fields, extent, slot.extent, strict=True):
                    if asked > most:
                        raise Refused(
                            f"the question has {name} = {asked}, and the approved plan allows {most} for a "
                            f"{head.verb!r} of {head.kind!r}; run the method that was planned, or plan again and have "
                            "the plan approved"
                        )

    def slots_for(self, head: QuestionHead) -> tuple[tuple[float, int], ...]:
        """Return (price, times) of each slot that a question with this ``head`` fits."""
        wanted = (head.verb, head.kind, kind_of(head.release))
        return tuple((slot.price, slot.times) for slot in self.slots if (slot.verb, slot.kind, slot.release) == wanted)

    def to_toml(self) -> str:
        """Return the agreement as TOML, for people to read and for sites to approve."""
        import tomli_w

        return tomli_w.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_toml(cls, text: str) -> Agreement:
        """Return the plan that a TOML text describes; raises :class:`InvalidParameter` for any other text."""
        try:
            found = msgspec.convert(parse_toml(text, "the plan"), cls)
            len(found.data)  # the encoding lacks integers of more than 64 bits
            return found
        except (msgspec.ValidationError, OverflowError) as error:
            raise InvalidParameter(f"the plan is not of this version ({error}); make it with fedsynth plan") from error
        except FedsynthError as error:
            raise InvalidParameter(str(error)) from error

    def save(self, path: Path) -> None:
        """Write the agreement to a TOML file, atomically."""
        write_whole(path, self.to_toml())

    @classmethod
    def load(cls, path: Path) -> Agreement:
        """Return the plan of a TOML file; raises :class:`FedsynthError` for any other file."""
        return cls.from_toml(read_text(path))


def options_of(value: Any) -> Any:
    """Return a method (or the ``value`` of one of its options) as JSON values for a plan.

    Dataclasses become objects whose entry ``is`` names the class; options that are ``None`` are left out. Functions are
    stated by name, and arrays by the SHA-256 of their bytes. Raises :class:`InvalidParameter` for any other value.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {option.name: options_of(getattr(value, option.name)) for option in dataclasses.fields(value)}
        return {"is": type(value).__name__, **{name: option for name, option in fields.items() if option is not None}}
    if isinstance(value, Mapping):
        return {str(name): options_of(option) for name, option in value.items()}
    if isinstance(value, list | tuple):
        return [options_of(option) for option in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, np.ndarray):
        return hashlib.sha256(value.tobytes()).hexdigest()
    raise InvalidParameter(f"an option of the kind {type(value).__name__} cannot be stated in a plan; use numbers")
