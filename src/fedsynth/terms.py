"""The terms of a run: what is protected, and by what, as one value that all who take part can compare."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from fedsynth.privacy.cost import ONE_ROW, Budget, Neighbours, ProtectedChange, Unit
from fedsynth.schema import Schema


@dataclass(frozen=True)
class Terms:
    """The terms of a run: schema, budget, trust model, and who is protected.

    ``budget`` bounds the cost of all releases together to one person. ``trust`` names the trust model, and
    ``trust_options`` are its settings (:func:`~fedsynth.federation.trust.settings_of`). ``unit`` says how many rows, at
    how many sites, one person may have. With ``public_sizes`` each site's number of rows is public.
    """

    schema: Schema
    budget: Budget
    trust: str
    trust_options: Mapping[str, float] = field(default_factory=dict)
    unit: Unit = ONE_ROW
    public_sizes: bool = False

    @property
    def neighbours(self) -> Neighbours:
        """Whether neighbouring tables differ by a person's rows added or removed, or replaced by others.

        They are replaced where the numbers of rows are public, since adding or removing rows would change these.
        """
        return "replace" if self.public_sizes else "add-remove"

    @cached_property
    def change(self) -> ProtectedChange:
        """The change of a table that every release must hide."""
        return ProtectedChange(self.unit, self.neighbours)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all terms, of the schema by its own digest."""
        budget = (float(self.budget.epsilon), float(self.budget.delta))
        parts = (self.schema.digest, budget, self.trust, dict(self.trust_options), self.unit, self.public_sizes)
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
