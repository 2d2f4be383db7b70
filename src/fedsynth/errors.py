"""The exceptions and warnings of fedsynth for its users; a message says what is wrong and how to go on."""

from __future__ import annotations

import difflib
import errno
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral

_LARGEST = 2**31 - 1  # of a run's exchanges, of whose numbers a message holds 31 bits, and of other steps and cells
_LISTED = 40  # most names listed in a message; a table may have a thousand columns


class FedsynthError(Exception):
    """Base class of the errors that fedsynth raises for its users; a message says what is wrong and how to go on."""


class SchemaError(FedsynthError):
    """A table or a value does not fit the schema, or a schema is invalid; the message says where, and how to fix it."""


class BudgetExceeded(FedsynthError):
    """A request would cost more privacy budget than the run, the site or a prepaid vault has left; it is not answered.

    The limit is that of the run's ledger (:class:`~fedsynth.privacy.ledger.Ledger`), of a site's own account, or of the
    deposit in a vault (:class:`~fedsynth.federation.vault.Vault`). The message says which.
    """


class Refused(FedsynthError):
    """A site or compute server refuses a request that its policy or the protocol forbids, and charges nothing for it.

    If a request goes to several sites, the others may have answered it and been charged.
    """


class Unsupported(FedsynthError):
    """The chosen trust model, transport, data source or installation cannot do what was requested."""


class InvalidParameter(FedsynthError, ValueError):
    """A parameter is outside its domain, such as an epsilon of 0 or a sampling rate of 2; also a ``ValueError``."""


class SiteLost(FedsynthError):
    """Too few sites answered for the run to continue, or not all three compute servers of trust ``three-servers``."""


class RunLost(SiteLost):
    """Too few sites answered, and resuming the run cannot change that; only another run can be completed."""


class Interrupted(FedsynthError):
    """What carries a run's messages does not serve the run any more; the run can be taken up where it stopped."""


class Incomplete(FedsynthError):
    """A run has paused because an input is missing; after it has been provided, the same command continues the run.

    This is how a run pauses whose messages people carry as files: the missing input is a site's reply.
    """


class DataWarning(UserWarning):
    """Rows, values or columns of a table were left out or changed because they do not fit the schema, or given twice.

    The message gives counts and quotes a few values of real rows: show it to people who may see the rows.
    """


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def said(sentence: str, *kinds: type[Exception]) -> Iterator[None]:
    """A context manager (for a ``with`` block) that turns errors of these ``kinds`` into a :class:`FedsynthError`.

    Its message is ``sentence``, in which ``{error}`` stands for the text of the error.
    """
    try:
        yield
    except kinds as error:
        raise FedsynthError(sentence.replace("{error}", str(error))) from error


def lacking(extra: str, what: str) -> Unsupported:
    """Return the error for a package that only the extra ``extra`` installs; ``what`` says what needs which package."""
    return Unsupported(f"{what}; pip install 'fedsynth[{extra}]'")


@contextmanager
def from_extra(extra: str, what: str) -> Iterator[None]:
    """A context manager for imports of packages that only an extra installs; without them it raises :func:`lacking`.

    A package of another version, which lacks a name, is named as well. A failed import of fedsynth's own is none.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "fedsynth":
            raise
        missing = isinstance(error, ModuleNotFoundError)
        raise lacking(extra, what if missing else f"{what}, of another version ({error})") from error


def explained(error: OSError) -> str:
    """Return the system's complaint about a file as a sentence: the file, what is wrong, and what to do about it."""
    where = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    said = (error.strerror or " ".join(map(str, error.args)) or "the system refused").lower()
    if error.errno in _FULL:
        said = (
            os.strerror(error.errno).lower()
            + "; free space there (df shows how much is left), or raise the limit, then do the same again"
        )
    elif isinstance(error, FileNotFoundError):
        said += "; check the path"
    return f"{where}: {said}" if where else said


def reason_of(error: Exception) -> str:
    """Return what a log says of an error: its sentence, after the error's class if fedsynth did not expect it."""
    if isinstance(error, OSError):
        return explained(error)
    return str(error) if isinstance(error, FedsynthError) else f"{type(error).__name__}: {error}"


def is_fault(error: Exception) -> bool:
    """Return whether an error is neither fedsynth's own nor the system's, so that a log should have its traceback."""
    return not isinstance(error, FedsynthError | OSError)


_EXIT: dict[type[FedsynthError], int] = {
    InvalidParameter: 2,
    SchemaError: 3,
    BudgetExceeded: 4,
    Refused: 5,
    Unsupported: 6,
    SiteLost: 7,
    Incomplete: 9,
}


def exit_code(error: FedsynthError) -> int:
    """Return the exit code (2 to 9) of a command or run that ends with ``error``; docs/cli.md lists the codes."""
    return next((code for kind, code in _EXIT.items() if isinstance(error, kind)), 8)


def nearest(name: str, known: Iterable[str], otherwise: str = "choose one of") -> str:
    """Return the end of an error message about an unknown ``name``: the most similar known name, or else all of them.

    ``otherwise`` are the words before the list.
    """
    names = list(known)
    by_case = {known_name.lower(): known_name for known_name in names}
    if near := difflib.get_close_matches(name.lower(), list(by_case), 1):
        return f"did you mean {by_case[near[0]]!r}?"
    return listed(names, otherwise)


def listed(known: Iterable[str], before: str = "choose one of") -> str:
    """Return the end of an error message: the first 40 names of ``known`` after the words ``before``."""
    names = list(known)
    more = f", ... ({len(names) - _LISTED} more)" if len(names) > _LISTED else ""
    return f"{before} {', '.join(names[:_LISTED])}{more}" if names else "there are none"


def number_of(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, as "1 site" or "2 sites"; ``plural`` is that of an irregular noun."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def positive(**numbers: float | None) -> None:
    """Raise :class:`InvalidParameter` unless every number, named by its keyword, is positive and finite or ``None``."""
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise InvalidParameter(f"{name} must be a positive number, not {number}")


def whole(first: int = 1, last: int = _LARGEST, /, **numbers: float | None) -> None:
    """Raise :class:`InvalidParameter` unless every number, named by its keyword, is an integer in range or ``None``."""
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, Integral) and first <= number <= last):
            limits = f"from {first} to {last}" if last < _LARGEST or number > last else f"of at least {first}"
            raise InvalidParameter(f"{name} must be a whole number {limits}, not {number}")


def between(low: float, high: float, /, **numbers: float) -> None:
    """Raise :class:`InvalidParameter` unless every number, named by its keyword, is from ``low`` to ``high``."""
    for name, number in numbers.items():
        if not low <= number <= high:
            raise InvalidParameter(f"{name} must lie between {low} and {high}, not {number}")
