"""Replicas of published methods that are NOT PRIVATE, for comparison: each is asked for with ``not_private=True``.

They release exact sums of the rows under every budget. Sites refuse them (:class:`~fedsynth.errors.Refused`) unless
their policy allows exact releases (in a simulation: ``federate(..., exact=True)``), and the run's privacy statement
says that nothing is guaranteed.
"""

from __future__ import annotations

from fedsynth.errors import InvalidParameter


def require_not_private(replica: object, not_private: bool) -> None:
    """Raise :class:`InvalidParameter` unless the option ``not_private`` of the method ``replica`` is true."""
    if not_private is not True:
        raise InvalidParameter(
            f"{type(replica).__name__} is NOT PRIVATE: it releases exact sums of the rows under every budget; use a "
            "private method or, to compare with it, set not_private=True (--set not_private=true)"
        )
