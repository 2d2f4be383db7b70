"""CPU time of the core without any method: imports, one query to a site, and messages, into benchmarks/tables.md.

python -m benchmarks.core
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import PAGE
from fedsynth.bench.page import write_section
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.policy import Policy
from fedsynth.federation.query import Counts
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import AuditPosition, Request, decode, encode, read_request
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Gaussian
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema
from fedsynth.terms import Terms

REPEATS = 9  # fresh processes for each import
IMPORTS = {
    "numpy": "import numpy",
    "all that a run starts with": "from fedsynth import federate; from fedsynth.methods.oneshot import OneShot",
    "what a site answers with": "import fedsynth.federation.site; from fedsynth.federation.query import Counts",
}
TARGET = 2.5  # multiples of the import time of numpy
ROWS, COLUMNS, BINS = 48_000, 15, 20
QUESTIONS = 70
QUESTION_TARGET = 3.0  # ms
LARGE = 3_400_000  # numbers


def imports(folder: Path) -> list[str]:
    """Return the table of import times: medians over fresh, interleaved processes; bytecode goes to ``folder``."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(1 + REPEATS):
        for name, code in IMPORTS.items():
            timed = f"import time; began = time.process_time(); {code}; print(time.process_time() - began)"
            command = [sys.executable, "-c", timed]
            said = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
            taken[name].append(1000 * float(said.stdout))
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}  # the first run compiles
    lines = ["| import | CPU ms | times numpy's | target |", "|---|---|---|---|"]
    for name, code in IMPORTS.items():
        ratio, target = ("", "") if name == "numpy" else (f"{medians[name] / medians['numpy']:.1f}", f"{TARGET:g}")
        lines.append(f"| {name} (`{code}`) | {medians[name]:.0f} | {ratio} | {target} |")
    return lines


def cpu(act: Callable[[], Any], repeats: int) -> list[float]:
    """Return the CPU milliseconds of ``repeats`` calls, in ascending order."""
    times = []
    for _ in range(repeats):
        began = time.process_time_ns()
        act()
        times.append((time.process_time_ns() - began) / 1e6)
    return sorted(times)


def request(schema: Schema, step: int) -> Request:
    """Return the query for the contingency table of one pair of columns."""
    pair = (step % COLUMNS, (step + 1 + step // COLUMNS) % COLUMNS)
    agreement = Agreement.of(Terms(schema, Budget(1.0, 1e-6), "local"), 1)
    asked = Counts.of(COLUMNS, [tuple(sorted(pair))])
    return Request.of(asked, agreement, run="benchmark", step=step, verb="sum", release=Gaussian(1e-5))


def _answer_next(site: Site, messages: Iterator[bytes]) -> bytes:
    return site.answer(next(messages)).data


def question(folder: Path) -> list[str]:
    """Return the table of one query's time: from the signed message to the reply, account on disk or in memory."""
    rng = np.random.default_rng(0)
    schema = Schema(tuple(Categorical(f"c{j}", tuple(range(BINS))) for j in range(COLUMNS)))
    rows = Table(schema, tuple(rng.integers(0, BINS, ROWS).astype(np.uint8) for _ in range(COLUMNS)))
    coordinator = Keys(os.urandom(32))
    lines = ["| account | CPU ms, median | tenth percentile | target |", "|---|---|---|---|"]
    for where, path in (("a file", folder / "account.sqlite"), ("memory", ":memory:")):
        policy = Policy(Budget(1.0, 1e-6), {"local": LocalNoise()}, any_plan=True)
        site = Site("north", rows, policy, Book(path), os.urandom(32), coordinator.public)
        messages = [
            Message.of("north", bytes(32), request(schema, step), coordinator, AuditPosition()).data
            for step in range(1, QUESTIONS + 1)
        ]
        taken = cpu(partial(_answer_next, site, iter(messages)), QUESTIONS)
        assert len(site.account.charges()) == QUESTIONS
        target = f"{QUESTION_TARGET:g}" if where == "a file" else ""
        lines.append(f"| {where} | {statistics.median(taken):.1f} | {taken[QUESTIONS // 10]:.1f} | {target} |")
    return lines


def messages() -> list[str]:
    """Return the table of messages: encoding, and decoding with every check that a receiver makes."""
    schema = Schema(tuple(Categorical(f"c{j}", tuple(range(BINS))) for j in range(COLUMNS)))
    coordinator = Keys(os.urandom(32))
    small = Message.of("north", bytes(32), request(schema, 1), coordinator, AuditPosition()).data
    values = PlainAnswer(np.random.default_rng(0).integers(-(2**40), 2**40, LARGE))
    large = encode(values)

    def read_question() -> None:
        found = read_request(small, "north", coordinator.public)
        agreed = Agreement.read(bytes(found.agreement))
        Request.read(found.body, lambda head: agreed)

    lines = ["| message | bytes | write, CPU ms | read, CPU ms |", "|---|---|---|---|"]
    for name, data, write, read in (
        ("the question for one pair", small, lambda: request(schema, 1).body, read_question),
        (f"{LARGE:,} integers", large, lambda: encode(values), lambda: decode(large, PlainAnswer)),
    ):
        repeats = 500 if data is small else REPEATS
        both = [statistics.median(cpu(act, repeats)) for act in (write, read)]
        lines.append(f"| {name} | {len(data):,} | {both[0]:.2f} | {both[1]:.2f} |")
    return lines


def report(folder: Path) -> str:
    """Return all tables as Markdown."""
    paragraphs: Sequence[tuple[str, list[str]]] = (
        (
            f"Imports in fresh processes, the interpreter's own start left out; medians of {REPEATS} each, by turns.",
            imports(folder),
        ),
        (
            f"One question for the contingency table of a pair ({BINS} x {BINS} cells) to a site of {ROWS:,} rows of "
            f"{COLUMNS} columns, by local noise: from the signed message to the stored reply, over {QUESTIONS} "
            "different questions. CPU time includes the kernel's, and grows where other work shares the machine.",
            question(folder),
        ),
        (
            "Messages to bytes and back, with the checks of form that a receiver makes (arrays stay views of the "
            "bytes).",
            messages(),
        ),
    )
    return "\n\n".join(f"{text}\n\n" + "\n".join(lines) for text, lines in paragraphs)


def main() -> None:
    """Measure, print, and write the section of the benchmark page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = report(Path(folder))
    print(text)
    write_section(arguments.out, "core", "Core", text)


if __name__ == "__main__":
    main()
