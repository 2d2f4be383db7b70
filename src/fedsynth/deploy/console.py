"""What every command shares: options, a progress bar, and output for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
Out = Annotated[Path, typer.Option("--out", help="Run directory to write; appears only when complete.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing run directory.")]


def say(json_: bool, facts: dict[str, Any], text: str) -> None:
    """Print facts as one JSON object, or the text that says them."""
    print(json.dumps(facts) if json_ else text)


@contextmanager
def progress_bar(json_: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on standard error where somebody looks at it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if json_ or not console.is_terminal:
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def score_table(scores: list[Any]) -> str:
    """Return scores as aligned text, synthetic beside reference."""
    width = max([len(score.name) for score in scores], default=0)
    lines = [f"{'how good it is':{width}} {'synthetic':>10} {'reference':>10}  reference is"]
    for score in scores:
        lines.append(
            f"{score.name:{width}} {score.synthetic.value:10.4f} {score.reference.value:10.4f}  {score.reference_is}"
        )
    return "\n".join(lines)
