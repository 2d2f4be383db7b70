"""Training and sampling of the diffusion beside bare PyTorch: ``python -m benchmarks.deep``.

Writes its tables into docs/benchmarks.md.

CPU seconds of one process, the median of steps that take turns with those they are compared with: only the ratios are
worth anything on a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import PAGE
from fedsynth.models.diffusion import Diffusion, bfloat16_is_faster, ddim, ddpm, draw
from fedsynth.models.encoders import Batch, Layout
from fedsynth.privacy.dpsgd import Tape, clipped_sum, split
from fedsynth.runs.bench_page import write_section

LAYOUT = Layout((12, 104, 58, 6, 211, 3709, 1911, 1), (7,))  # the published code's columns of Philadelphia's payments
BATCH, ROWS = 512, 2000
WIDTHS = (256, 1024)


def _medians(acts: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of each act; they take turns, and each goes once before anything is measured."""
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(repeats + 1):
        for name, act in acts.items():
            start = time.process_time()
            act()
            if turn:
                taken[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def _rows(many: int) -> Batch:
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.integers(0, size, many) for size in LAYOUT.tokens], axis=1)
    return Batch(tokens, rng.random((many, len(LAYOUT.numbers))))


def _bare(network: Diffusion) -> Callable[[], None]:
    """Return one training step of the published network in plain modules, on points that are there already."""
    nn, size = torch.nn, network.dimensions(LAYOUT)
    time_layers = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
    row_layers = nn.Sequential(nn.Linear(size, 64), nn.SiLU(), nn.Linear(64, 64))
    layers: list[torch.nn.Module] = []
    for inputs in (64, *[network.width] * (network.depth - 1)):
        layers += [nn.Linear(inputs, network.width), nn.LeakyReLU(0.4)]
    trunk = nn.Sequential(*layers, nn.Linear(network.width, size))
    parameters = [*time_layers.parameters(), *row_layers.parameters(), *trunk.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    points = torch.from_numpy(network.points(LAYOUT, _rows(BATCH)))
    signal = torch.from_numpy(network.signal).float()
    half = torch.exp(-np.log(10_000) * torch.arange(32) / 32)

    def step() -> None:
        times = torch.randint(0, network.steps, (BATCH,))
        eps = torch.randn_like(points)
        kept = signal[times][:, None]
        angles = times[:, None] * half
        features = torch.cat([angles.cos(), angles.sin()], dim=1)
        noisy = kept.sqrt() * points + (1 - kept).sqrt() * eps
        loss = (trunk(row_layers(noisy) + time_layers(features)) - eps).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def _ours(network: Diffusion) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return one plain training step and one of DP-SGD's clipped sums with its step; both encode their rows."""
    rng, batch = np.random.default_rng(0), _rows(BATCH)
    shapes = network.shapes(LAYOUT)
    parameters = [one.requires_grad_() for one in split(network.initial(LAYOUT, rng), shapes)]
    optimiser = torch.optim.Adam(parameters, lr=1e-4, fused=True)

    def plain() -> None:
        loss = network.losses(LAYOUT, batch, rng)(Tape(parameters), slice(None)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    def clipped() -> None:
        flat = clipped_sum(network.losses(LAYOUT, batch, rng), parameters, BATCH, 1.0)
        for one, slope in zip(parameters, split(flat / BATCH, shapes), strict=True):
            one.grad = slope
        optimiser.step()

    return plain, clipped


def training(repeats: int) -> list[str]:
    """Return the table of training steps."""
    lines = ["| network | bare ms | ours | ours, each row clipped |", "|---|---|---|---|"]
    for width in WIDTHS:
        network = Diffusion(width=width, depth=4)
        plain, clipped = _ours(network)
        found = _medians({"bare": _bare(network), "plain": plain, "clipped": clipped}, repeats)
        ratios = " | ".join(f"{found[name] / found['bare']:.2f}" for name in ("plain", "clipped"))
        lines.append(f"| 4 x {width} | {1e3 * found['bare']:.1f} | {ratios} |")
        print(lines[-1], flush=True)
    return lines


def sampling(repeats: int) -> list[str]:
    """Return the table of samplers, decoding included."""
    lines = ["| network | DDIM-25 s | DDPM-500 | DDIM-25, bfloat16 if faster |", "|---|---|---|---|"]
    for width in WIDTHS:
        network = Diffusion(width=width, depth=4)
        weights = network.initial(LAYOUT, np.random.default_rng(0))

        def rows(steps: Any, precision: Any, network: Diffusion = network, weights: Any = weights) -> Callable[[], Any]:
            return lambda: draw(
                network, LAYOUT, weights, steps, ROWS, np.random.default_rng(0), device="cpu", precision=precision
            )

        short, long = ddim(network, 25), ddpm(network)
        found = _medians({"ddim": rows(short, "float32"), "auto": rows(short, "auto")}, repeats)
        slow = _medians({"ddpm": rows(long, "float32")}, 1)["ddpm"]
        ratios = f"{slow / found['ddim']:.1f} | {found['auto'] / found['ddim']:.2f}"
        lines.append(f"| 4 x {width} | {found['ddim']:.2f} | {ratios} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    lines = [
        f"CPU time of PyTorch {torch.__version__.split('+')[0]}, {torch.get_num_threads()} thread(s); other columns "
        "are multiples of the first. Training: one update of 512 rows, 15 dimensions, float32; ours include encoding "
        "the rows, the bare loop finds them encoded.",
        "",
        *training(arguments.repeats),
        "",
        f"Sampling: {ROWS:,} rows, decoded. bfloat16 is at least twice as fast here: "
        f"{'yes' if bfloat16_is_faster('cpu') else 'no'}.",
        "",
        *sampling(min(arguments.repeats, 3)),
    ]
    write_section(arguments.out, "deep", "Deep generative models", "\n".join(lines))


if __name__ == "__main__":
    main()
