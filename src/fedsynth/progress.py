"""Progress bars for functions that take a while: in a terminal, and in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

Progress = Callable[[str, int, int], None]
"""A callback: ``progress(what, done, total)`` says that ``done`` of the ``total`` steps of ``what`` are complete."""


def ignore_progress(what: str, done: int, total: int) -> None:
    """Show no progress."""


@contextmanager
def shown(progress: bool | Progress) -> Iterator[Progress]:
    """A context manager that yields a callback which shows progress.

    ``True`` shows a bar for each task: in the output of a notebook's cell, or on standard error if that is a terminal.
    ``False`` shows nothing, and a callback is yielded as it is.
    """
    if callable(progress):
        yield progress
    elif progress and _has_kernel():
        yield _in_notebook()
    elif progress and sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        yield ignore_progress


def _has_kernel() -> bool:
    """Return whether this process is a notebook's, and not one that merely imported IPython."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def _in_notebook() -> Progress:
    from importlib import import_module

    display: Any = import_module("IPython.display")
    tasks: dict[str, tuple[int, int]] = {}
    shown_as: list[Any] = []

    def report(what: str, done: int, total: int) -> None:
        tasks[what] = (done, total)
        bars = "".join(
            f'<div><progress value="{at}" max="{of}"></progress> {escape(name)}: {at} of {of}</div>'
            for name, (at, of) in tasks.items()
        )
        if shown_as:
            shown_as[0].update(display.HTML(bars))
        else:
            shown_as.append(display.display(display.HTML(bars), display_id=True))

    return report


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report
