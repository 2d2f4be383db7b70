"""Fed-TDA's tables 2 and 3 with several seeds: a federated classifier with and without synthetic rows at its sites.

    python -m benchmarks.augmentation [--datasets clinical,body] [--learners sane] [--betas 0.05] [--seeds 5] [--jobs 2]

Scores of the last round, of the round that rows held out at the sites choose, and the published maximum over rounds of
the TEST score stand side by side, with floors. The real data sets are read from the folder that FEDSYNTH_DATA names
(default: ../shared/data beside the repository).
"""

from __future__ import annotations

import argparse
import itertools
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.run import DATA, PAGE, ROOT, write_section
from fedsynth.data.partition import CappedLabelSkew
from fedsynth.data.source import read_frame
from fedsynth.deploy.job import find_trust
from fedsynth.evaluation.federated import Course, Scores, append_rows, hold_out, majority
from fedsynth.federation.simulation import federate
from fedsynth.methods import FedTDA, FedTDAPaper, Method
from fedsynth.models.synthesizer import CopulaSynthesizer
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Column, Numeric, Schema
from fedsynth.table import Table, concatenate

SPEC = ROOT / "benchmarks" / "augmentation.toml"
# Method and epsilon by name; those without an epsilon are not private.
SYNTHETIC: dict[str, tuple[Callable[[int], Method], float | None]] = {
    "FedTDA as published": (lambda target: FedTDAPaper(), None),
    "FedTDA exact": (lambda target: FedTDA(target=target), None),
    "FedTDA, epsilon 8": (lambda target: FedTDA(target=target), 8.0),
    "FedTDA, epsilon 1": (lambda target: FedTDA(target=target), 1.0),
}
BALANCED = ", balanced"  # after a name: as many rows of each class


class Cell(NamedTuple):
    """Which line of the table: ``synthetic`` names what was appended, or the floor."""

    dataset: str
    beta: float
    learner: str
    algorithm: str
    synthetic: str


@dataclass(frozen=True)
class Figures:
    """What one training measured (of sites alone: the mean); not a number where nothing was selected or trained."""

    cell: Cell
    seed: int
    last: Scores
    selected: Scores
    published_maximum: Scores
    cpu_seconds: float


@cache
def spec() -> dict[str, Any]:
    """Return the description of the tables."""
    return tomllib.loads(SPEC.read_text())


@cache
def load(name: str) -> tuple[Table, Table]:
    """Return training and test rows; the schema's bounds and categories are those of the file, as published."""
    described = spec()["datasets"][name]
    frame, target = read_frame(DATA / described["file"]), described["target"]
    rng = np.random.default_rng(0)
    if "classes" in described:
        frame = frame[frame[target].isin(frame[target].value_counts().index[: described["classes"]])]
    frame = frame.iloc[rng.permutation(len(frame))[: described.get("rows", len(frame))]]
    frame = frame[[column for column in frame if frame[column].nunique() > 1]]
    columns = [_column(frame[column], column == target, column in described.get("doubling", ())) for column in frame]
    table = Schema(tuple(columns), missing_values=()).encode(frame)
    order = rng.permutation(len(table))
    return table.take(order[described["test_rows"] :]), table.take(order[: described["test_rows"]])


def _column(values: pd.Series[Any], label: bool, doubling: bool) -> Column:
    name = str(values.name)
    if label or not pd.api.types.is_numeric_dtype(values) or values.nunique() == 2:
        return Categorical(name, tuple(sorted(values.unique().tolist())))
    low, high, whole = float(values.min()), float(values.max()), bool((values == values.round()).all())
    edges = (low, *(2.0**power for power in range(64) if low < 2**power < high), high) if doubling else None
    bins = int(min(spec()["setting"]["bins"], values.nunique()))
    return Numeric(name, low, high, edges=edges, bins=bins, integer=whole)


def measure(dataset: str, beta: float, learner: str, seed: int, rounds: int | None) -> list[Figures]:
    """Split the rows, and train one learner by every algorithm with every kind of synthetic rows, and on the floors."""
    import torch

    from fedsynth.evaluation import federated_training as training

    torch.set_num_threads(1)
    kinds = {"sane": training.SaneMLP, "published": training.PublishedMLP}
    algorithms = {one.name: one for one in (training.fedavg(), training.fedprox(), training.fedmix())}
    described = spec()["datasets"][dataset]
    chosen, target, (_, test) = described["learners"][learner], described["target"], load(dataset)
    network, found = kinds[learner](**_options(chosen, rounds)), []
    sites, held = skewed(dataset, beta, seed)

    def run(tables: list[Table], algorithm: str, kept: list[Table], learns: training.Learner = network) -> Course:
        how = algorithms[algorithm]
        return training.train(tables, test, target, algorithm=how, learner=learns, seed=seed, held=kept)

    for synthetic, names in chosen["runs"].items():
        augmented = sites
        if synthetic != "none":
            many = round(described["synthetic_share"] * sum(len(one) for one in sites))
            augmented = append_rows(sites, synthesised(synthetic, sites, target, many, seed))
        for algorithm in names:
            began = time.process_time()
            courses = [run(augmented, algorithm, held)]
            seconds = time.process_time() - began
            found.append(_figures(Cell(dataset, beta, learner, algorithm, synthetic), seed, courses, seconds))
    # The pooled reference takes as many steps as all sites together.
    central = replace(network, steps=network.steps * len(sites)) if isinstance(network, training.SaneMLP) else network
    floors = {
        "each site alone": lambda: [run([one], "FedAvg", []) for one in sites],
        "pooled rows": lambda: [run([concatenate(sites)], "FedAvg", held, central)],
        "commonest class": lambda: [Course((majority(sites, test, target),))],
    }
    for floor in chosen["floors"]:
        found.append(_figures(Cell(dataset, beta, learner, "floor", floor), seed, floors[floor](), float("nan")))
    return found


def skewed(dataset: str, beta: float, seed: int) -> tuple[list[Table], list[Table]]:
    """Return what each site trains on, and what it holds out."""
    rows, _ = load(dataset)
    setting, rng = spec()["setting"], np.random.default_rng([seed, round(1000 * beta)])
    how = CappedLabelSkew(beta, rows.schema.index(spec()["datasets"][dataset]["target"]))
    site = how.assign(rows, setting["sites"], rng)
    return hold_out([rows.take(site == one) for one in range(setting["sites"])], setting["hold_out"], rng)


def synthesised(name: str, sites: list[Table], target: str, rows: int, seed: int) -> Table:
    """Return synthetic rows fitted to what the sites train on, and to nothing that they hold out."""
    setting, schema = spec()["setting"], sites[0].schema
    method, epsilon = SYNTHETIC[name.removesuffix(BALANCED)]
    budget = Budget.none() if epsilon is None else Budget(epsilon, setting["delta"])
    federation = federate(sites, schema, budget, trust=find_trust(setting["trust"]), seed=seed)
    synthesizer = method(schema.index(target)).fit(federation)
    rng = np.random.default_rng(seed)
    if name.endswith(BALANCED):
        assert isinstance(synthesizer, CopulaSynthesizer)
        return schema.encode(synthesizer.sample_balanced(target, rows, rng))
    return schema.encode(synthesizer.sample(rows, rng))


def _figures(cell: Cell, seed: int, courses: list[Course], seconds: float) -> Figures:
    chosen = [one.selected for one in courses if one.validation]
    ways = [one.last for one in courses], chosen, [one.published_maximum_over_test_rounds for one in courses]
    last, selected, maximum = (
        Scores(*(np.mean([astuple(one) for one in way], axis=0).tolist() if way else [float("nan")] * 4))
        for way in ways
    )
    return Figures(cell, seed, last, selected, maximum, seconds)


def report(figures: list[Figures], rounds: int | None) -> str:
    """Return the results as Markdown: mean and standard deviation over the seeds beside the published figure."""
    setting = spec()["setting"]
    lines = [
        f"K = {setting['sites']} sites by label: each class by its own Dirichlet(beta) draw, none to a site with N / K "
        f"rows. {len({one.seed for one in figures})} seeds of split, synthesis and training; one test set. Score: ROC "
        f"AUC (clinical), accuracy (others). Each site holds {setting['hold_out']:.0%} of its rows out, which the "
        "synthesizer does not see either. Last: after the last round. Selected: in the round with the best score on "
        "the rows held out. Maximum: the largest TEST score of any round, as published; no honest figure. Epsilon is "
        f"that of the synthetic rows (delta {setting['delta']:g}, trust: {setting['trust']}); exact and published "
        "ones are not private, and neither is any classifier trained on the sites' own rows.",
        "",
        "| data | beta | learner | algorithm | synthetic rows | last | selected | maximum | published maximum | "
        "selected macro F1 | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in dict.fromkeys(one.cell for one in figures):
        runs = [one for one in figures if one.cell == cell]
        metric = spec()["datasets"][cell.dataset]["metric"]
        scores = [
            _spread([getattr(getattr(one, way), metric) for one in runs], 3)
            for way in ("last", "selected", "published_maximum")
        ]
        lines.append(
            f"| {cell.dataset} | {cell.beta:g} | {cell.learner} | {cell.algorithm} | {cell.synthetic} | "
            f"{' | '.join(scores)} | {_published(cell)} | {_spread([one.selected.macro_f1 for one in runs], 3)} | "
            f"{_spread([one.cpu_seconds for one in runs], 1)} |"
        )
    return "\n".join(
        [*lines, "", *(_note(name, rounds) for name in dict.fromkeys(one.cell.dataset for one in figures))]
    )


def _note(dataset: str, rounds: int | None) -> str:
    described = spec()["datasets"][dataset]
    trained = []
    for learner, chosen in described["learners"].items():
        options = _options(chosen, rounds)
        trained.append(f"{learner} learner: {', '.join(f'{what} {many}' for what, many in options.items())}")
    share = described["synthetic_share"]
    return f"- {dataset}: {'; '.join(trained)}; synthetic rows at each site: {share:g} N. {described['note']}"


def _options(chosen: dict[str, Any], rounds: int | None) -> dict[str, int]:
    return {**chosen["options"], **({} if rounds is None else {"rounds": rounds})}


def _published(cell: Cell) -> str:
    """Return the published figure of the same cell: of the published learner, with its own generator or without."""
    place = {"none": 0, "FedTDA exact": 1, "FedTDA as published": 1}.get(cell.synthetic)
    if cell.learner != "published" or place is None:
        return ""
    figures = spec()["published"][cell.dataset][f"{cell.beta:g}"][cell.algorithm]
    return f"{figures[place]:.3f}" if place < len(figures) else ""


def _spread(values: Sequence[float], digits: int) -> str:
    if np.isnan(values).any():
        return ""
    return f"{np.mean(values):.{digits}f}" + (f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else "")


Job = tuple[str, float, str, int, int | None]


def jobs(datasets: Sequence[str], learners: Sequence[str], seeds: int, rounds: int | None) -> Iterator[Job]:
    """Yield every split and learner of the tables."""
    for dataset in datasets:
        described = spec()["datasets"][dataset]
        for beta, learner in itertools.product(described["betas"], learners):
            if beta in described["learners"][learner].get("betas", described["betas"]):
                for seed in range(seeds):
                    yield dataset, beta, learner, seed, rounds


def _measure(job: Job) -> list[Figures]:
    return measure(*job)


def main() -> None:
    """Run the tables, and write them beside the published figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="", help="only these data sets, by comma")
    parser.add_argument("--learners", default="sane,published", help="only these learners, by comma")
    parser.add_argument("--betas", default="", help="only these skews, by comma")
    parser.add_argument("--seeds", type=int, default=spec()["setting"]["seeds"])
    parser.add_argument("--rounds", type=int, default=None, help="instead of the rounds in the TOML")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    datasets = arguments.datasets.split(",") if arguments.datasets else list(spec()["datasets"])
    if unknown := set(datasets) - set(spec()["datasets"]):
        parser.error(f"no data set {', '.join(sorted(unknown))}; choose among {', '.join(spec()['datasets'])}")
    betas = [float(beta) for beta in arguments.betas.split(",") if beta]
    todo = [
        job
        for job in jobs(datasets, arguments.learners.split(","), arguments.seeds, arguments.rounds)
        if not betas or job[1] in betas
    ]
    figures: list[Figures] = []
    # PyTorch's threads do not survive a fork.
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for some in pool.map(_measure, todo):
            figures += some
            for one in some:
                print(one, flush=True)
    write_section(arguments.out, spec()["section"], spec()["title"], report(figures, arguments.rounds))


if __name__ == "__main__":
    main()
