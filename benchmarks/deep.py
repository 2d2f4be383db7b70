"""Time of training and sampling the diffusion model, beside bare PyTorch: ``python -m benchmarks.deep [--only round]``.

Writes its tables into benchmarks/tables.md. ``--only samplers`` compares the fidelity of rows that one network, trained
on real tables, draws in few steps and in all steps (about 20 CPU minutes).

Times are CPU seconds of one process (with ``--device cuda``, wall-clock seconds until the GPU is done): medians over
interleaved runs of the alternatives. On a shared machine, only the ratios are meaningful.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import DATA, PAGE
from fedsynth.bench.grid import training_and_test
from fedsynth.bench.page import write_section
from fedsynth.bench.spec import read_spec
from fedsynth.data.partition import parse_partition
from fedsynth.data.partition import split as split_rows
from fedsynth.deep.diffusion import Diffusion, TabularDiffusion, bfloat16_is_faster, ddim, ddpm, draw
from fedsynth.deep.dpsgd import Tape, clipped_sum, split
from fedsynth.deep.encoders import BatchLayout, CellPlaces, EncodedBatch, Encoder
from fedsynth.deep.fedtabdiff import FedTabDiff
from fedsynth.deep.training import LocalTraining, grid_for
from fedsynth.encoding import encode
from fedsynth.evaluation.similarity import sdmetrics_fidelity
from fedsynth.federation.query import weights_digest
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.device import computing_on, device
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema

LAYOUT = BatchLayout(
    (12, 104, 58, 6, 211, 3709, 1911, 1), (7,)
)  # the published code's columns of Philadelphia's payments
BATCH, ROWS = 512, 2000
WIDTHS = (256, 1024)
SITES, UPDATES = 5, 20  # of a round
SAMPLED = (25, 50, 100)  # numbers of DDIM steps whose rows are compared


def _network(width: int) -> Diffusion:
    """Return the published network, which predicts noise, with hidden layers of this width."""
    return Diffusion(width=width, depth=4, predicts="noise")


def _now() -> float:
    """Return the CPU time in seconds; on a GPU, the wall-clock time after synchronisation."""
    if device() == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _medians(acts: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each call; the calls are interleaved, and the first turn is a warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(repeats + 1):
        for name, act in acts.items():
            start = _now()
            act()
            if turn:
                taken[name].append(_now() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def _rows(many: int) -> EncodedBatch:
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.integers(0, size, many) for size in LAYOUT.tokens], axis=1)
    return EncodedBatch(tokens, rng.random((many, len(LAYOUT.numbers))))


def _bare(
    network: Diffusion, points: torch.Tensor, clip: float = 0.0
) -> tuple[list[torch.nn.Parameter], Callable[[], None]]:
    """Return the published network in plain PyTorch modules: its parameters, and a training step on the next batch.

    With ``clip``, the step clips the gradient of each row to that L2 norm, the same arithmetic as DP-SGD's, in the
    fewest calls that PyTorch allows: norms from the layers' inputs and output gradients, one product per layer, all in
    float32 and in the order of the batch, with no bound on what one row can change.
    """
    nn, size, where = torch.nn, network.dimensions(LAYOUT), device()
    time_layers = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
    row_layers = nn.Sequential(nn.Linear(size, 64), nn.SiLU(), nn.Linear(64, 64))
    layers: list[torch.nn.Module] = []
    for inputs in (64, *[network.width] * (network.depth - 1)):
        layers += [nn.Linear(inputs, network.width), nn.LeakyReLU(0.4)]
    trunk = nn.Sequential(*layers, nn.Linear(network.width, size))
    parts = (time_layers, row_layers, trunk)
    parameters = [one for part in parts for one in part.to(where).parameters()]
    passed: list[tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]] = []
    if clip:
        for layer in (layer for part in parts for layer in part if isinstance(layer, nn.Linear)):
            layer.register_forward_hook(lambda layer, given, z: passed.append((layer, given[0].detach(), z)))
    optimiser = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    signal = torch.from_numpy(network.signal).float().to(where)
    half = torch.exp(-np.log(10_000) * torch.arange(32, device=where) / 32)
    batches = itertools.cycle(points.to(where).split(BATCH))

    def step() -> None:
        points = next(batches)
        times = torch.randint(0, network.steps, (BATCH,), device=where)
        eps = torch.randn_like(points)
        kept = signal[times][:, None]
        angles = times[:, None] * half
        features = torch.cat([angles.cos(), angles.sin()], dim=1)
        noisy = kept.sqrt() * points + (1 - kept).sqrt() * eps
        losses = (trunk(row_layers(noisy) + time_layers(features)) - eps).square().mean(1)
        optimiser.zero_grad()
        if clip:
            outputs = [z for _, _, z in passed]
            slopes = torch.autograd.grad(losses.sum(), outputs)
            squared = sum(
                g.square().sum(1) * (a.square().sum(1) + 1) for (_, a, _), g in zip(passed, slopes, strict=True)
            )
            factor = (clip / squared.sqrt()).clamp_(max=1.0)[:, None] / len(points)
            for (layer, a, _), g in zip(passed, slopes, strict=True):
                scaled = g * factor
                layer.weight.grad, layer.bias.grad = scaled.T @ a, scaled.sum(0)
            passed.clear()
        else:
            losses.mean().backward()
        optimiser.step()

    return parameters, step


def _ours(network: Diffusion) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return two training steps of fedsynth: a plain one, and one with DP-SGD's per-row clipping; both encode rows."""
    rng, batch = np.random.default_rng(0), _rows(BATCH)
    shapes = network.shapes(LAYOUT)
    parameters = [one.requires_grad_() for one in split(network.initial(LAYOUT, rng), shapes, device())]
    optimiser = torch.optim.Adam(parameters, lr=1e-4, fused=True)

    def plain() -> None:
        loss = network.losses(LAYOUT, batch, rng)(Tape(parameters), slice(None)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    def clipped() -> None:
        flat = clipped_sum(network.losses(LAYOUT, batch, rng), parameters, BATCH, 1.0)
        for one, slope in zip(parameters, split(flat, shapes, device()), strict=True):
            one.grad = slope.div_(BATCH)
        optimiser.step()

    return plain, clipped


def training(repeats: int) -> list[str]:
    """Return the table of training steps."""
    lines = [
        "| network | bare ms | ours | bare, each row clipped | ours, each row clipped | clipped: ours / bare |",
        "|---|---|---|---|---|---|",
    ]
    for width in WIDTHS:
        network = _network(width)
        plain, clipped = _ours(network)
        points = torch.from_numpy(network.points(LAYOUT, _rows(BATCH)))
        acts = {"bare": _bare(network, points)[1], "plain": plain}
        acts |= {"bare clipped": _bare(network, points, clip=1.0)[1], "clipped": clipped}
        found = _medians(acts, repeats)
        ratios = [found[name] / found["bare"] for name in ("plain", "bare clipped", "clipped")]
        ratios.append(found["clipped"] / found["bare clipped"])
        columns = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| 4 x {width} | {1e3 * found['bare']:.1f} | {columns} |")
        print(lines[-1], flush=True)
    return lines


def sampling(repeats: int) -> list[str]:
    """Return the table of samplers, decoding included."""
    lines = ["| network | DDIM-25 s | DDPM-500 | DDIM-25, bfloat16 if faster |", "|---|---|---|---|"]
    for width in WIDTHS:
        network = _network(width)
        weights = network.initial(LAYOUT, np.random.default_rng(0))

        def rows(steps: Any, precision: Any, network: Diffusion = network, weights: Any = weights) -> Callable[[], Any]:
            return lambda: draw(network, LAYOUT, weights, steps, ROWS, np.random.default_rng(0), precision=precision)

        short, long = ddim(network, 25), ddpm(network)
        found = _medians({"ddim": rows(short, "float32"), "auto": rows(short, "auto")}, repeats)
        slow = _medians({"ddpm": rows(long, "float32")}, 1)["ddpm"]
        ratios = f"{slow / found['ddim']:.1f} | {found['auto'] / found['ddim']:.2f}"
        lines.append(f"| 4 x {width} | {found['ddim']:.2f} | {ratios} |")
        print(lines[-1], flush=True)
    return lines


def federated_round(repeats: int) -> list[str]:
    """Return the table of one round of FedAvg without noise, beside the same updates in bare PyTorch."""
    network, rows = _network(WIDTHS[-1]), UPDATES * BATCH
    points = torch.from_numpy(network.points(LAYOUT, _rows(rows)))
    start = network.initial(LAYOUT, np.random.default_rng(0))

    def bare() -> None:
        total = [torch.zeros(shape, device=device()) for shape in network.shapes(LAYOUT)]
        for _ in range(SITES):
            parameters, step = _bare(network, points)
            for one, weights in zip(parameters, split(start, network.shapes(LAYOUT), device()), strict=True):
                one.data.copy_(weights)
            for _ in range(UPDATES):
                step()
            for one, trained in zip(total, parameters, strict=True):
                one.add_(trained.detach(), alpha=1 / SITES)

    encoders = [Encoder(np.arange(tokens)) for tokens in LAYOUT.tokens]
    for at in LAYOUT.numbers:
        whole = CellPlaces(np.array([0.0]), np.array([1.0]), np.array([0.0]), np.array([1.0]))
        encoders[at] = Encoder(np.zeros(1, dtype=np.int64), whole)
    schema, tables = _federation(rows)
    federation = federate(tables, schema, Budget.none(), trust=TrustedServer(), seed=0)
    sizes = tuple((site, len(one)) for site, one in tables.items())

    def ours() -> None:
        query = LocalTraining(
            1.0,
            weights_digest(start),
            network,
            tuple(encoders),
            0.0,
            grid_for(0.0, len(start)),
            UPDATES,
            BATCH,
            1e-4,
            0.0,
            sizes,
        )
        federation.average(query, 1.0, start)

    found = _medians({"bare": bare, "ours": ours}, repeats)
    line = f"| 4 x {WIDTHS[-1]} | {found['bare']:.2f} | {found['ours'] / found['bare']:.2f} |"
    print(line, flush=True)
    return ["| network | bare s | federated |", "|---|---|---|", line]


def samplers(fresh: int = 20_000) -> list[str]:
    """Return the table of the fidelity of rows that each sampler draws from one network, for each data set of Table 2.

    The network is the federated one of ``papers/fedtabdiff_table2.toml``, seed 0.
    """
    spec = read_spec((Path(__file__).parent / "papers" / "fedtabdiff_table2.toml").read_text(encoding="utf-8"))
    heads = ["DDPM-500", *(f"DDIM-{steps}" for steps in SAMPLED)]
    lines = [f"| data set | {' | '.join(heads)} | DDPM-500 again |", "|" + "---|" * (len(heads) + 2)]
    for name, how in (("philadelphia", "payments"), ("diabetes", "age")):
        train, _ = training_and_test(spec, name, DATA, 0)
        target = spec.datasets[name].target
        assert target is not None
        partition = parse_partition(spec.partitions[how].how, train.schema, target)
        parts = split_rows(train, SITES, partition, np.random.default_rng(0))
        sites = {f"site-{at}": part for at, part in enumerate(parts)}
        federation = federate(sites, train.schema, Budget.none(), trust=TrustedServer(), seed=0)
        fitted = FedTabDiff(target=target, rounds=200, updates=20, batch=512).fit(federation)
        assert isinstance(fitted.model, TabularDiffusion)
        scores = []
        for number, steps in enumerate((500, *SAMPLED, 500)):
            model = replace(fitted.model, sampler="ddpm" if steps == 500 else "ddim", steps=steps)
            frame = replace(fitted, model=model).sample(fresh, np.random.default_rng(number))
            scores.append(sdmetrics_fidelity(train, encode(train.schema, frame))[""])
        lines.append(f"| {name} | " + " | ".join(f"{score:.3f}" for score in scores) + " |")
        print(lines[-1], flush=True)
    return lines


def _federation(rows: int) -> tuple[Schema, dict[str, Table]]:
    """Return the schema of the layout's columns, and each site's rows."""
    schema = Schema(
        tuple(
            Numeric(f"column {at}", 0, 1, bins=10)
            if at in LAYOUT.numbers
            else Categorical(f"column {at}", tuple(range(tokens)))
            for at, tokens in enumerate(LAYOUT.tokens)
        )
    )
    batch = _rows(rows)
    frame = pd.DataFrame({f"column {at}": batch.tokens[:, at] for at in range(len(LAYOUT.tokens))})
    for number, at in enumerate(LAYOUT.numbers):
        frame[f"column {at}"] = batch.places[:, number]
    table = encode(schema, frame)
    return schema, {f"site-{at}": table for at in range(SITES)}


SAMPLERS = (
    "Fidelity (SDMetrics, of 20,000 rows against the training rows) of what one federated network of `fedtabdiff` "
    "draws: five sites, 4 layers of 256, 200 rounds of 20 updates, no noise, seed 0."
)


def main() -> None:
    """Measure, print, and write the sections of the benchmark page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--only", choices=["steps", "round", "samplers"], help="training steps, a round, or samplers alone"
    )
    arguments = parser.parse_args()
    with computing_on(arguments.device):
        if arguments.only == "samplers":
            text = "\n".join([SAMPLERS, "", *samplers()])
            write_section(arguments.out, "deep-samplers", "Rows drawn in fewer steps", text)
            return
        name, title = ("", "") if arguments.device == "cpu" else ("-cuda", " on a GPU")
        if arguments.only != "round":
            write_section(
                arguments.out, f"deep{name}", f"Deep generative models{title}", "\n".join(_steps(arguments.repeats))
            )
        if arguments.only != "steps":
            lines = [
                f"One round of FedAvg, {SITES} sites, {UPDATES} updates of {BATCH} rows each, no noise, all in one "
                f"process: {_machine()} The federation reads and encodes rows, packs, signs and checks weights and "
                "answers, and adds up integers; the bare loop takes the same updates on encoded rows.",
                "",
                *federated_round(min(arguments.repeats, 3)),
            ]
            write_section(arguments.out, f"deep-round{name}", f"A federated round{title}", "\n".join(lines))


def _machine() -> str:
    """Return a text on the hardware, the PyTorch version and the units of the tables."""
    version = torch.__version__.split("+")[0]
    if device() == "cuda":
        what = f"seconds on {torch.cuda.get_device_name()}, PyTorch {version}"
    else:
        what = f"CPU time of PyTorch {version}, {torch.get_num_threads()} thread(s)"
    return f"{what}; other columns are multiples of the first."


def _steps(repeats: int) -> list[str]:
    """Return the tables of training steps and of samplers."""
    faster = "yes" if bfloat16_is_faster(device()) else "no"
    return [
        f"{_machine()} Training: one update of 512 rows, 15 dimensions, float32; ours include encoding the rows, the "
        "bare loop finds them encoded. The bare clipped loop is the same arithmetic in float32, without "
        "what bounds the change by one row (blocks, double-precision sums, rows padded to a fixed shape).",
        "",
        *training(repeats),
        "",
        f"Sampling: {ROWS:,} rows, decoded. bfloat16 is at least twice as fast here: {faster}.",
        "",
        *sampling(min(repeats, 3)),
    ]


if __name__ == "__main__":
    main()
