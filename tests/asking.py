"""Questions as a coordinator asks them, with fields of the question and of its agreement side by side."""

from __future__ import annotations

from typing import Any

import msgspec

from fedsynth.federation.agreement import Agreement
from fedsynth.federation.query import AnyQuery
from fedsynth.federation.trust import Trust, settings_of
from fedsynth.federation.wire import Request
from fedsynth.privacy.cost import Budget, Unit

AGREED = Agreement("", "local", {}, 1, public_sizes=False, budget=Budget(1.0, 1e-6), unit=Unit())


def agreed(**fields: Any) -> Agreement:
    """Return an agreement of a run under local noise that protects single rows, with other fields as given."""
    return msgspec.structs.replace(AGREED, **fields)


def request_of(query: AnyQuery, **fields: Any) -> Request:
    """Return the first message of a question.

    ``fields`` are those of its head and of its agreement, or a ``plan``; ``neighbours`` stands for public sizes, and a
    ``trust`` may be given whole.
    """
    if isinstance(trust := fields.get("trust"), Trust):
        fields |= {"trust": trust.name, "trust_options": settings_of(trust)}
    if "neighbours" in fields:
        fields["public_sizes"] = fields.pop("neighbours") == "replace"
    terms = {name: fields.pop(name) for name in Agreement.__struct_fields__ if name in fields}
    return Request.of(query, fields.pop("plan", None) or agreed(**terms), **fields)
