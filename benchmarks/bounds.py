"""Numbers under generous public bounds: quantiles and heaps that survive, tails that noise invents, few non-zeros.

``python -m benchmarks.bounds [--parts bounds tails hospitals few] [--methods auto oneshot]`` prints the figures of
docs/methods/auto.md#numbers. All rows are made, at three sites under secure sums; epsilon is 1 unless a line says so.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth import Budget, Synthesizer, federate
from fedsynth.methods.registry import find_method
from fedsynth.privacy.cost import Unit
from fedsynth.schema import Boolean, Categorical, Column, Datetime, Numeric, Schema
from fedsynth.secure.site import SecureSum

ROWS, SHARES = 20_000, (9, 7, 4)  # at three sites
METHODS = ("auto", "tda", "fedchowliu", "fedprivsyn", "oneshot")
QUANTILES = (0.1, 0.5, 0.9, 0.99)
KINDS: dict[str, Callable[[float], Numeric]] = {
    "decimals": lambda bound: Numeric("x", 0.0, bound, decimals=2),
    "integers": lambda bound: Numeric("x", 0, int(bound), integer=True),
    "floats": lambda bound: Numeric("x", 0.0, bound),
    "negatives": lambda bound: Numeric("x", -bound, bound, decimals=2),
}
SHAPES: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "lognormal, sigma 1": lambda rng: np.exp(rng.normal(3, 1, ROWS)),
    "lognormal, sigma 1.5": lambda rng: np.exp(rng.normal(3, 1.5, ROWS)),
    "gamma": lambda rng: rng.gamma(2, 50, ROWS),
    "half zeros": lambda rng: np.where(rng.random(ROWS) < 0.5, 0.0, np.exp(rng.normal(5, 1, ROWS))),
    "normal": lambda rng: np.abs(rng.normal(100, 15, ROWS)),
}


def synthetic(
    method: str, rows: pd.DataFrame, columns: tuple[Column, ...], seed: int, epsilon: float = 1, unit: int = 1
) -> pd.DataFrame:
    """Return as many synthetic rows of ``columns``; ``unit`` successive rows are one person's."""
    rows = rows.assign(person=np.arange(len(rows)) // unit)
    parts = np.split(np.arange(len(rows)), np.cumsum(SHARES)[:-1] * len(rows) // sum(SHARES))
    federation = federate(
        [rows.iloc[part] for part in parts],
        Schema(columns),
        Budget(epsilon, 1e-6),
        trust=SecureSum(min_honest=2),
        unit=Unit(rows=unit),
        person="person" if unit > 1 else "",
        seed=seed,
    )
    fitted: Synthesizer = find_method(method).kind().fit(federation)
    return fitted.sample(len(rows), seed)


def bounds(methods: list[str], seeds: int) -> Iterator[str]:
    """Compare quantiles of 20,000 lognormal amounts, 6 % of which are 100, in a table of ten columns."""
    others = [Categorical(f"other{number}", tuple(range(5))) for number in range(8)]
    yield (
        "| method | values | bound | 10 % | 50 % | 90 % | 99 % | of exactly 100, % | label |\n|---|---|---|"
        + "---|" * 6
    )
    for method, kind, bound in itertools.product(methods, KINDS, (1e5, 1e7, 1e9, 1e12)):
        found = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            label = rng.random(ROWS) < 0.4
            amounts = np.exp(rng.normal(np.log(19.9) + 0.8 * (label - 0.4), 1.13, ROWS))
            amounts = np.round(np.where(rng.random(ROWS) < 0.06, 100.0, amounts), 0 if kind == "integers" else 2)
            if kind == "negatives":
                amounts *= rng.choice([-1, 1], ROWS)
            real = pd.DataFrame({"x": amounts, "label": label} | {one.name: rng.integers(0, 5, ROWS) for one in others})
            made = synthetic(method, real, (KINDS[kind](bound), Boolean("label"), *others), seed)
            within = rng.uniform(-0.5, 0.5, (2, ROWS)) * (kind == "integers")  # or one row decides between 4 and 5
            sizes = [rows["x"].abs() + noise for rows, noise in zip((made, real), within, strict=True)]
            gain = [np.diff(rows["x"].abs().groupby(rows["label"]).median())[0] for rows in (made, real)]
            ratios = [np.quantile(sizes[0], q) / np.quantile(sizes[1], q) for q in QUANTILES]
            found.append([*ratios, 100 * (made["x"].abs() == 100).mean(), gain[0] / gain[1]])
        yield f"| {method} | {kind} | {bound:.0e} | {' | '.join(f'{figure:.2f}' for figure in np.median(found, 0))} |"


def tails(methods: list[str], seeds: int) -> Iterator[str]:
    """Count columns whose mean is off by a fifth, or with rows above twice the largest, of five in a table."""
    yield "| method | epsilon | bound / largest | mean off, % | rows far above, % | off |\n|---|---|---|---|---|---|"
    for method, epsilon, times in itertools.product(methods, (1.0, 0.33), (4, 10, 30, 100)):
        off, above = [], []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, times])
            real = pd.DataFrame({name: np.round(draw(rng), 2) for name, draw in SHAPES.items()})
            columns = tuple(Numeric(name, 0.0, float(np.ceil(times * real[name].max())), decimals=2) for name in SHAPES)
            made = synthetic(method, real, columns, seed, epsilon)
            off.append((made.mean() / real.mean() - 1).abs() > 0.2)
            above.append(made.max() > 2 * real.max())
        names = pd.DataFrame(off).sum()
        which = ", ".join(f"{name} {count}" for name, count in names[names > 0].items())
        shares = [100 * pd.DataFrame(found).to_numpy().mean() for found in (off, above)]
        yield f"| {method} | {epsilon} | {times} | {shares[0]:.1f} | {shares[1]:.1f} | {which} |"


def patients(rng: np.random.Generator, rows: int = 22_000) -> pd.DataFrame:
    """Return hospital stays, three a person, whose costs have a mean of about 1,300 and reach 26,000."""
    sick = np.repeat(rng.normal(size=rows // 3 + 1), 3)[:rows] + 0.5 * rng.normal(size=rows)
    cost = np.exp(np.log(867) + 0.9 * (0.716 * sick + 0.6 * rng.normal(size=rows)))
    return pd.DataFrame(
        {
            "age": np.repeat(rng.gamma(9, 6, rows // 3 + 1), 3)[:rows].clip(0, 105).round(),
            "sex": rng.choice(["f", "m"], rows),
            "department": rng.choice(list("abcdefgh"), rows, p=np.array([30, 20, 15, 12, 9, 6, 5, 3]) / 100),
            "diagnosis": np.minimum(rng.geometric(0.15, rows) - 1, 19),
            "nights": np.where(rng.random(rows) < 0.3, 0, rng.poisson(np.exp(0.8 + 0.5 * sick)).clip(0, 365)),
            "cost": cost.clip(1, 26_000).round(2),
            "score": (50 + 12 * sick + 5 * rng.normal(size=rows)).clip(0, 100).round(1),
            "emergency": rng.random(rows) < 0.35,
            "admitted": pd.Timestamp("2022-01-01") + pd.to_timedelta(rng.integers(0, 730, rows), unit="D"),
            "readmitted": rng.random(rows) < 1 / (1 + np.exp(1.2 - sick)),
        }
    )


def hospitals(methods: list[str], seeds: int) -> Iterator[str]:
    """Compare the mean cost of made stays at three hospitals; persons with three rows, public bound 100,000."""
    columns = (
        *(Numeric("age", 0, 110, integer=True), Categorical("sex", ("f", "m"))),
        *(Categorical("department", tuple("abcdefgh")), Categorical("diagnosis", tuple(range(20)))),
        *(Numeric("nights", 0, 365, integer=True), Numeric("cost", 0.0, 1e5, decimals=2)),
        *(Numeric("score", 0.0, 100.0, decimals=1), Boolean("emergency")),
        *(Datetime("admitted", "2015-01-01", "2025-01-01", unit="D"), Boolean("readmitted")),
    )
    yield "| method | runs | mean cost, to real | off by a fifth | above twice the largest |\n|---|---|---|---|---|"
    for method in methods:
        ratios, above = [], []
        for seed in range(seeds):
            real = patients(np.random.default_rng(seed))
            made = synthetic(method, real, columns, seed, unit=3)
            ratios.append(made["cost"].mean() / real["cost"].mean())
            above.append(made["cost"].max() > 2 * real["cost"].max())
        off = int((np.abs(np.array(ratios) - 1) > 0.2).sum())
        yield f"| {method} | {seeds} | {min(ratios):.2f} to {max(ratios):.2f} | {off} | {sum(above)} |"


def main() -> None:
    """Print the tables of the parts that were asked for."""
    parts = {part.__name__: part for part in (bounds, tails, hospitals)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    for name in asked.parts:
        print(f"\n{parts[name].__doc__}\n")
        for line in parts[name](asked.methods, asked.seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
