"""CPU time and memory of AugFLAIM on Adult over up to 1,000 simulated sites.

    python -m benchmarks.sites [--sites 100,1000] [--trusts trusted,local,secure]

The data set is read from the folder named by FEDSYNTH_DATA (default: ../shared/data beside the repository).
"""

from __future__ import annotations

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks import DATA, PAGE, ROOT
from fedsynth.bench.grid import training_and_test
from fedsynth.bench.page import write_section
from fedsynth.bench.spec import read_spec
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.simulate import federate
from fedsynth.methods.flaim import AugFLAIM
from fedsynth.privacy.cost import Budget


@dataclass(frozen=True)
class Figures:
    """Cost of one run."""

    sites: int
    trust: str
    cpu_seconds: float
    gigabytes: float
    questions: int


def measure(case: tuple[int, str]) -> Figures:
    """Run AugFLAIM (10 rounds, a tenth of the sites in each); call it in a fresh process, for its peak memory."""
    sites, trust = case
    spec = read_spec((ROOT / "benchmarks" / "papers" / "heterofedsyn_table4.toml").read_text())
    train, _ = training_and_test(spec, "adult", DATA)
    rng = np.random.default_rng(0)
    tables = [train.take(rows) for rows in np.array_split(rng.permutation(len(train)), sites)]
    began = time.process_time()
    federation = federate(tables, train.schema, Budget(1.0, 1e-5), trust=trust_named(trust, {}), seed=0)
    AugFLAIM(rounds=10, rate=0.1).fit(federation)
    seconds = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Figures(sites, trust, seconds, memory, len(federation.ledger.entries))


def main() -> None:
    """Run every case in its own process, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default="100,1000", help="numbers of sites, separated by commas")
    parser.add_argument("--trusts", default="trusted,local,secure", help="trusts, separated by commas")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    cases = [(int(sites), trust) for sites in arguments.sites.split(",") for trust in arguments.trusts.split(",")]
    lines = [
        "AugFLAIM on Adult (26,049 rows, 100 bins a number), 10 rounds with a tenth of the sites in each; the whole "
        "fit in one process, sites, ledgers and messages included. Questions: distinct queries; each goes to all sites "
        "of its round.",
        "",
        "| sites | trust | questions | CPU s | peak GB |",
        "|---|---|---|---|---|",
    ]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for one in pool.map(measure, cases):
            print(one, flush=True)
            lines.append(
                f"| {one.sites:,} | {one.trust} | {one.questions} | {one.cpu_seconds:.1f} | {one.gigabytes:.2f} |"
            )
    write_section(arguments.out, "many-sites", "Many simulated sites", "\n".join(lines))


if __name__ == "__main__":
    main()
