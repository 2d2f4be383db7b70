"""What a saved model's head and arrays must be, whoever wrote the file: types, shapes and ranges.

Models and axes read their part of a file through these functions, so that a damaged or hostile file is refused where it
is loaded, and whatever loads can be sampled. Facts that tie a model to its axes and these to the schema's columns are
compared once all three are known (:func:`fedsynth.models.synthesizer.load`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.schema.bins import MOST_COLUMNS, Floats, Grid, Integers
from fedsynth.schema.columns import Column

LARGEST = 1e18  # of a number in a saved array: sums of them, and of their squares, stay finite
_NEAR = 1e-6  # tolerated difference of a sum of shares from 1
_DEFINITE = 1e-9  # least eigenvalue of a correlation matrix

Total = Annotated[float, msgspec.Meta(gt=0, le=2.0**40)]
"""An estimated number of records."""
Position = Annotated[int, msgspec.Meta(ge=0, lt=MOST_COLUMNS)]
"""The position of a column."""
SavedColumns = Annotated[tuple[Position, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
"""Positions of columns; :func:`check_positions` checks their order."""

_T = TypeVar("_T", bound=msgspec.Struct)


class DrawnColumn(NamedTuple):
    """What a model draws for one column, which the column's axis converts to values.

    Integer codes from 0 to below ``size``; if ``placed``, float64 of the form code + place, with a place from 0 to
    below 1; or, if ``latents`` is not 0, points on so many normal axes (``size`` is then 0).
    """

    size: int
    placed: bool = False
    latents: int = 0


def read_head(meta: object, kind: type[_T]) -> _T:
    """Return a model's part of a file's head as a ``kind``; raises :class:`InvalidParameter` if it does not fit."""
    try:
        return msgspec.convert(meta, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidParameter(f"its head does not fit: {str(error).splitlines()[0]}") from error


def read_floats(
    arrays: Mapping[str, NDArray[Any]], name: str, shape: Sequence[int | None], least: float = -LARGEST
) -> Floats:
    """Return the array ``name`` of a file: float64 of this ``shape`` with numbers from ``least`` to 1e18, none NaN.

    ``None`` in the shape stands for any length of at least 1. Raises :class:`InvalidParameter` for anything else.
    """
    array = _read(arrays, name, shape, np.float64)
    if not ((array >= least) & (array <= LARGEST)).all():
        raise InvalidParameter(f"the array {name!r} has a number that is not between {least:g} and {LARGEST:g}")
    return array


def read_integers(arrays: Mapping[str, NDArray[Any]], name: str, shape: Sequence[int | None], below: int) -> Integers:
    """Return the array ``name`` of a file: int64 with numbers from 0 to below ``below``, as :func:`read_floats`."""
    array = _read(arrays, name, shape, np.int64)
    if not ((array >= 0) & (array < below)).all():
        raise InvalidParameter(f"the array {name!r} has a number that is not between 0 and {below - 1}")
    return array


def _read(
    arrays: Mapping[str, NDArray[Any]], name: str, shape: Sequence[int | None], dtype: type[np.generic]
) -> NDArray[Any]:
    if name not in arrays:
        raise InvalidParameter(f"the array {name!r} is missing")
    array = arrays[name]
    fits = array.ndim == len(shape) and all(
        own == length if length is not None else own > 0 for own, length in zip(array.shape, shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise InvalidParameter(f"the array {name!r} has shape {array.shape} and dtype {array.dtype}, which do not fit")
    return array


def check_positions(columns: Sequence[int], many: int) -> None:
    """Raise :class:`InvalidParameter` unless ``columns`` are ascending, different positions below ``many``."""
    if list(columns) != sorted(set(columns)) or (columns and columns[-1] >= many):
        raise InvalidParameter(f"{list(columns)[:40]} is not an ascending list of columns below {many}")


def check_shares(name: str, shares: Floats) -> None:
    """Raise :class:`InvalidParameter` unless ``shares`` (0 or more) sum to 1 along their last axis, up to 1e-6."""
    if not (np.abs(shares.sum(axis=-1) - 1) <= _NEAR).all():
        raise InvalidParameter(f"the shares {name!r} do not sum to 1")


def check_correlation(matrix: Floats) -> None:
    """Raise :class:`InvalidParameter` unless ``matrix`` is a correlation matrix: symmetric and positive definite.

    Its diagonal must be 1 up to 1e-6; eigenvalues below 1e-9 count as 0.
    """
    sound = np.allclose(matrix, matrix.T, rtol=0, atol=_NEAR) and np.allclose(np.diag(matrix), 1, rtol=0, atol=_NEAR)
    if sound:
        try:
            np.linalg.cholesky(matrix - _DEFINITE * np.eye(len(matrix)))
        except np.linalg.LinAlgError:
            sound = False
    if not sound:
        raise InvalidParameter("its correlations are not a correlation matrix: symmetric and positive definite")


def read_grid(arrays: Mapping[str, NDArray[Any]]) -> Grid:
    """Return the cells that the arrays "lower", "upper" and "per_unit" of a file describe.

    Raises :class:`InvalidParameter` unless both ends of the cells ascend.
    """
    lower = read_floats(arrays, "lower", (None,))
    grid = Grid(
        lower, read_floats(arrays, "upper", lower.shape), int(read_integers(arrays, "per_unit", (), 10**12 + 1))
    )
    if (np.diff(grid.lower) < 0).any() or (np.diff(grid.upper) < 0).any():
        raise InvalidParameter("the cells of a column do not ascend")
    return grid


def check_cells(column: Column, grid: Grid | None, cells: int) -> None:
    """Raise :class:`InvalidParameter` unless an axis with so many ``cells`` gives values of ``column``, all of them.

    The cells are the codes of a category or, with a ``grid``, its intervals and one cell of missing values if the
    column admits them. All values of the grid must be values of the column.
    """
    if not column.is_number or grid is None:
        fits = grid is None and not column.is_number and cells == column.size
    else:
        low, high = (float(edge) for edge in column.bin_edges[[0, -1]])
        half = 0.5 / grid.per_unit if grid.per_unit else 0.0
        near = _NEAR * half + (4 * np.finfo(float).eps * max(abs(low), abs(high)) if half else 0.0)  # of rounding
        first, last = float(grid.lower[0]) + half, float(grid.upper[-1]) - half
        fits = cells == len(grid) + column.missing and grid.per_unit == column.per_unit
        fits = fits and low - near <= first <= last + near and last <= high + near
    if not fits:
        raise InvalidParameter(f"its axis does not fit the column {column.name!r} of its schema")
