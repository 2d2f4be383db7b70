"""The path of one question: how many functions answer it, and how many calls lead from one file into another.

python -m benchmarks.path [--trust trusted|secure] [--list]

One question for the counts of two columns, at three sites in one process, is asked once more after a first time, while
``sys.setprofile`` notes which functions of fedsynth call which. Counted are named functions (what a comprehension calls
counts for the function around it), without those that draw noise (``NOISE``), and distinct pairs of a
function and one that it calls in another file. Both are what a reader goes through, not what a run costs.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedsynth
from fedsynth import encoding
from fedsynth.federation.federation import Federation
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Numeric, Schema

SOURCE = str(Path(fedsynth.__file__).parent)
NOISE = ("privacy/gaussian.py", "privacy/inversion.py", "privacy/noise.py")
TRUSTS = ("trusted", "secure")


class Function(NamedTuple):
    """A function of fedsynth: its file below the package, and its name with that of its class."""

    file: str
    name: str


class Trace:
    """The ``functions`` that were called, and the ``calls`` of one by another."""

    def __init__(self) -> None:
        """Start with none."""
        self.functions: set[Function] = set()
        self.calls: set[tuple[Function, Function]] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note the calls of this thread and of those that are started meanwhile."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (called := _named(frame.f_code)) is None:
            return
        self.functions.add(called)
        caller = frame.f_back
        while caller is not None and (of := _named(caller.f_code)) is None and _is_own(caller.f_code):
            caller = caller.f_back
        if caller is not None and of is not None:
            self.calls.add((of, called))

    @property
    def between_files(self) -> set[tuple[Function, Function]]:
        """The calls of a function by one in another file."""
        return {(one, other) for one, other in self.calls if one.file != other.file}


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE)


def _named(code: CodeType) -> Function | None:
    """Return a function of fedsynth that has a name and draws no noise; ``None`` for any other code."""
    if not _is_own(code) or code.co_name.startswith("<"):
        return None
    file = code.co_filename.removeprefix(SOURCE).lstrip("/\\").replace("\\", "/")
    return None if file in NOISE else Function(file, code.co_qualname)


def traced(trust: str) -> Trace:
    """Return the trace of one warm question under a trust."""
    federation = _federation(trust)
    trace, question = Trace(), Counts.of(2, [(0, 1)])
    federation.sum(question, 0.1)
    with trace.recording():
        federation.sum(question, 0.1)
    return trace


def _federation(trust: str) -> Federation:
    rng = np.random.default_rng(0)
    schema = Schema((Numeric("age", 0, 100, bins=10), Categorical("sex", ("f", "m"))))
    frames = [pd.DataFrame({"age": rng.uniform(0, 100, 300), "sex": rng.choice(["f", "m"], 300)}) for _ in range(3)]
    sites = {f"site-{at}": encoding.encode(schema, frame) for at, frame in enumerate(frames, 1)}
    return federate(sites, schema, Budget(1.0, 1e-6), trust=trust_named(trust, {}), seed=0)


def main() -> None:
    """Print the counts, and with --list the functions by file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trust", choices=TRUSTS, help="default: both")
    parser.add_argument("--list", action="store_true", help="list the functions by file")
    given = parser.parse_args()
    for trust in [given.trust] if given.trust else TRUSTS:
        trace = traced(trust)
        files = {function.file for function in trace.functions}
        print(
            f"{trust}: {len(trace.functions)} functions in {len(files)} files, "
            f"{len(trace.between_files)} distinct calls from one file into another"
        )
        for file in sorted(files) if given.list else ():
            print(f"  {file}: {', '.join(sorted(one.name for one in trace.functions if one.file == file))}")


if __name__ == "__main__":
    main()
