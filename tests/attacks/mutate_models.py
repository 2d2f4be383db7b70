"""Mutated model files, and archives that unpack to far more than they are: what must hold when they are loaded.

A program by itself, so that its memory is its own: ``python -m tests.attacks.mutate_models KINDS SEED FILES`` with
KINDS "plain" or "networks" (which need PyTorch), or ``... bombs``; it prints what it counted, as JSON, and fails where
a file raises anything but a sentence.
"""

from __future__ import annotations

import io
import json
import logging
import math
import resource
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.archive import pack, unpack
from fedsynth.bench.published.mixture import Mixture, TwoAxes
from fedsynth.deep.diffusion import Diffusion, TabularDiffusion
from fedsynth.deep.encoders import BatchLayout
from fedsynth.deep.gan import Generator, TabularGAN
from fedsynth.deep.one_hot import OneHot
from fedsynth.deep.vae import AutoEncoder, TabularVAE
from fedsynth.errors import FedsynthError
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.card import HiddenGroups, Limitations, LostColumn
from fedsynth.models.copula import Copula, OneAxis
from fedsynth.models.gum import GradualRows, GradualUpdate
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.normal_scores import NormalScores
from fedsynth.models.ranked import RankedGroups
from fedsynth.models.structure import Structure
from fedsynth.models.synthesizer import FORMAT, Synthesizer, load, own_bins, saved_kinds
from fedsynth.models.tilt import Tilt
from fedsynth.privacy.cost import Budget, Cost
from fedsynth.privacy.ledger import Releases
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Axis, Grid
from fedsynth.schema.derive import Rule
from fedsynth.statement import ForeignPart, Statement
from fedsynth.terms import Terms

SCHEMA = Schema(
    (
        Categorical("diagnosis", ("a", "b", "c"), missing=True),
        Boolean("smoker"),
        Numeric("age", 0, 100, bins=5, integer=True, missing=True),
        Numeric("score", -1, 1, bins=4),
        Datetime("seen", "2020-01-01", "2020-03-01", bins=3, unit="D"),
    ),
    rules=(Rule({"diagnosis": ["a"], "smoker": [True]}),),
)
NETWORKS = ("vae", "gan", "diffusion")
_ROWS = 30
_FLOATS = (0.0, -1.0, 1e-300, 5e-324, 0.5, 2.0, 1e18, 1e300, float("inf"), -float("inf"), float("nan"))
_VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 31, 2**16, 2**31, 2**40, 2**53, 2**63 - 1, 2**64 - 1, 10**30, 0.5, -0.5, 1e300),
    *(None, True, "", "x", "nan", [], {}, [[]], [0, 0], [1, 0], [0, 1, 2, 3, 4, 5], {"": 1}),
)

# ---------------------------------------------------------------------------------------------------------------------
# Files


TILT = Tilt(
    (Axis(0), Axis(2, np.array([30.0, 60.0, 100.0])), Axis(1, None, np.array([0, 1]))),
    (None, np.array([0, 1, 2, 0]), np.array([0, 1])),
    ((0,), (1, 2), (0, 1)),
    (np.array([0.1, -0.2, 0.0, 0.3]), np.array(0.01), np.array([0.0, 0.02, -0.01, 0.0])),
)


def saved(model: Any, axes: Any, tilt: Tilt | None = None) -> bytes:
    """Return the file of a synthesizer, with a statement, a summary of its ledger, and limitations."""
    stated = Statement(
        Terms(SCHEMA, Budget(1.0, 1e-6), "secure", {"min_honest": 2}),
        Cost(math.inf, 0.01),
        0,
        assumption="at least 2 of 3 are honest",
        foreign=(ForeignPart("query", "theirs", "package:Theirs"),),
        records=40.0,
    )
    releases = (Releases("sum counts", "gaussian", 1, 2, 30, 1.5, 2.5, 0.5),)
    limits = Limitations(
        *(40.0, 60.0, 3, ("noise drowns these tables",), ("age",)),
        (HiddenGroups("count", "diagnosis", 1, 3, 40.0, 9.0, (("a", 9.0),)),),
        lost=(LostColumn("wide cell", "age", "0 to 9", 0.6, "0 to 99"),),
    )
    with tempfile.TemporaryDirectory() as folder:
        made = Synthesizer(SCHEMA, tuple(axes), model, {"method": "test"}, stated, releases, limits, tilt)
        made.save(Path(folder) / "m")
        return (Path(folder) / "m").read_bytes()


def cells(rng: np.random.Generator) -> list[AdaptiveBins]:
    """Return adaptive bins of every column, in groups of about half as many as there are cells."""
    found = []
    for column in SCHEMA.stored:
        bins = AdaptiveBins.of(column)
        bins = bins.updated(rng.random(len(bins.counts)) * 40, 1.0, 200.0)
        found.append(bins.grouped(20, 6))
    return found


def models(kinds: str) -> dict[str, bytes]:
    """Return a file of each class of models with each kind of axis that it is saved with."""
    rng = np.random.default_rng(0)
    bins = cells(rng)
    groups = tuple(one.size for one in bins)
    if kinds == "networks":
        layout = BatchLayout(groups, (2, 3, 4))
        vae, gan = AutoEncoder((8,), 4), Generator(4, (8,))
        diffusion = Diffusion(width=8, depth=1, steps=10, label=0)
        shares = [np.full(size, 1 / size) for size in OneHot.of(layout).sizes]
        labels = np.full(groups[0], 1 / groups[0])
        return {
            "vae": saved(TabularVAE(vae, layout, vae.initial(layout, rng), 100.0), bins),
            "gan": saved(TabularGAN(gan, layout, gan.initial(layout, rng), np.concatenate(shares), 100.0), bins),
            "diffusion": saved(
                TabularDiffusion(diffusion, layout, diffusion.initial(layout, rng), 100.0, labels, steps=3), bins
            ),
        }

    def table(*columns: int, sizes: tuple[int, ...]) -> Any:
        return rng.random([sizes[column] for column in columns])

    cliques = [(0, 1), (1, 2), (2, 3), (3, 4)]
    fields = {
        name: MarkovRandomField(sizes, 100.0, cliques, [table(*clique, sizes=sizes) for clique in cliques])
        for name, sizes in (("schema", SCHEMA.sizes), ("groups", groups))
    }
    ordered = tuple(bins[at].ordered(SCHEMA.stored[at]) for at in (2, 3))
    ranked = RankedGroups(fields["groups"], (2, 3), ordered, (-1, 0), np.array([0.0, 0.5]))
    tables = {clique: table(*clique, sizes=SCHEMA.sizes) for clique in [*((at,) for at in range(5)), (0, 1)]}
    structure = Structure((2, 0, 1, 3, 4), ((2,), (0, 2), (), (2,), (0,)))
    conditionals = []
    for column, parents in enumerate(structure.parents):
        own = table(*parents, column, sizes=groups)
        conditionals.append(own / own.sum(axis=-1, keepdims=True))
    margins: list[OneAxis | TwoAxes] = []
    for place, stored in enumerate(SCHEMA.stored):
        if place == 3:
            assert isinstance(stored, Numeric)
            axis = NormalScores.of(np.array([0.5, 0.5, 0.0]), np.array([2, 0, 1]))
            mixture = Mixture(np.array([0.5, 0.5]), np.array([-0.5, 0.5]), np.array([0.1, 0.2]))
            margins.append(TwoAxes(mixture, axis, Grid.fine(stored.bin_edges, stored.per_unit, 16)))
        elif isinstance(stored, Numeric | Datetime):
            grid = Grid.fine(stored.bin_edges, stored.per_unit, 16)
            margins.append(OneAxis(NormalScores.of(rng.random(len(grid) + int(stored.missing))), grid))
        else:
            margins.append(OneAxis(NormalScores.of(rng.random(stored.size)), None))
    matrix = np.eye(6) + 0.2 * (np.ones((6, 6)) - np.eye(6))
    return {
        "graphical": saved(fields["schema"], own_bins(SCHEMA)),
        "graphical, tilted": saved(fields["schema"], own_bins(SCHEMA), TILT),
        "graphical, groups": saved(fields["groups"], bins),
        "ranked": saved(ranked, bins),
        "gradual": saved(GradualRows(GradualUpdate(SCHEMA.sizes, tables, 3), 100.0), own_bins(SCHEMA)),
        "bayes": saved(BayesianNetwork(structure, tuple(conditionals), 100.0), bins),
        "copula": saved(Copula.of(margins, matrix, 100.0), margins),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Mutations


class Mutator:
    """Changes model files at random: their bytes, members, heads and arrays."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        return int(self.rng.integers(max(1, n)))

    def one(self, values: Any) -> Any:
        return list(values)[self.below(len(values))]

    def file(self, data: bytes, other: bytes) -> tuple[str, bytes]:
        """Return the name of a mutation, and the mutated file."""
        files = (self.flips, self.cut, self.twice, self.layout, self.nest, self.names)
        arrays = (self.swap, self.cast, self.numbers, self.numbers, self.mix)
        heads = (self.head, self.head, self.head, self.toml, self.cycle)
        how: Callable[[bytes, bytes], bytes] = self.one((*files, *arrays, *heads))
        return how.__name__, how(data, other)

    def flips(self, data: bytes, other: bytes) -> bytes:
        found = bytearray(data)
        for _ in range(1 + self.below(3)):
            found[self.below(len(found))] ^= 1 << self.below(8)
        return bytes(found)

    def cut(self, data: bytes, other: bytes) -> bytes:
        """Truncate the file, or cut a piece out of it."""
        start = self.below(len(data))
        return data[:start] + (data[start + self.below(64) :] if self.below(2) else b"")

    def twice(self, data: bytes, other: bytes) -> bytes:
        """Repeat a member, or add one that the head does not name."""
        buffer = io.BytesIO(data)
        with zipfile.ZipFile(buffer, "a") as archive:
            name = self.one(archive.namelist()) if self.below(3) else self.one(("x", "../x", "model.x", "head.json/"))
            content = archive.read(name) if name in archive.namelist() and self.below(2) else b"{}"
            info = zipfile.ZipInfo(name)
            info.compress_type = self.one((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
            archive._didModify = True  # type: ignore[attr-defined]
            archive.NameToInfo.pop(name, None)  # else zipfile warns
            archive.writestr(info, content)
        return buffer.getvalue()

    def layout(self, data: bytes, other: bytes) -> bytes:
        """Let the head declare another shape, dtype or order of an array."""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        head = json.loads(members["head.json"])
        layout = head["arrays"][self.one(head["arrays"])]
        match self.below(3):
            case 0:
                layout[0] = self.one(("<f8", "<f4", "|u1", "|O", "|V16", "<M8[s]", "<c16", ">f8", 3, None))
            case 1 if layout[1]:
                layout[1][self.below(len(layout[1]))] = self.one((0, 1, -1, 2**31, 2**39, 2**62, 2**70, 1.5, "1"))
            case _:
                layout[1] = self.one(([], [0] * 40, [2**39] * 3, [-1], 7, [1] * 33))
        members["head.json"] = json.dumps(head).encode()
        return zipped(members)

    def swap(self, data: bytes, other: bytes) -> bytes:
        """Swap two arrays, or lose one."""
        meta, arrays = unpack(data)
        first, second = self.one(arrays), self.one(arrays)
        arrays[first], arrays[second] = arrays[second], arrays[first]
        if not self.below(3):
            del arrays[first]
        return pack(meta, arrays)

    def cast(self, data: bytes, other: bytes) -> bytes:
        """Give an array another dtype or shape."""
        meta, arrays = unpack(data)
        name = self.one(arrays)
        array = arrays[name]
        match self.below(5):
            case 0:
                array = array.astype(self.one(("<f8", "<f4", "<i8", "|u1", "<u8")))
            case 1:
                array = array.ravel()[: self.below(array.size + 1)]
            case 2:
                array = array[None] if self.below(2) else array.T
            case 3:
                array = np.repeat(array.ravel(), 2)
            case _:
                array = array.reshape(-1, 1)
        return pack(meta, {**arrays, name: array})

    def numbers(self, data: bytes, other: bytes) -> bytes:
        """Put extreme numbers into an array."""
        meta, arrays = unpack(data)
        name = self.one(arrays)
        array = np.array(arrays[name])
        if array.size:
            many = 1 + self.below(min(array.size, 8)) if self.below(4) else array.size
            at = self.rng.choice(array.size, many, replace=False)
            if array.dtype.kind == "f":
                with np.errstate(over="ignore"):
                    array.ravel()[at] = np.array(self.one(_FLOATS)).astype(array.dtype)
            else:
                array.ravel()[at] = self.one((-1, 0, 1, 2, 1000, 2**31, 2**62, -(2**63)))
        return pack(meta, {**arrays, name: array})

    def head(self, data: bytes, other: bytes) -> bytes:
        """Replace, remove or repeat a value of the head."""
        meta, arrays = unpack(data)
        owner: Any = meta
        key: Any = self.one(("model", "model", "model", "axes", "kind", "info", "schema", "format"))
        while isinstance(owner[key], dict | list) and owner[key] and self.below(5):
            owner = owner[key]
            key = self.one(owner) if isinstance(owner, dict) else self.below(len(owner))
        match self.below(4):
            case 0:
                del owner[key]
            case 1 if isinstance(owner[key], list) and owner[key]:
                owner[key] = owner[key] + [self.one(owner[key])]
            case 2 if type(owner[key]) in (int, float):
                owner[key] = self.one((owner[key] + 1, -owner[key], owner[key] * 1000, float(owner[key])))
            case _:
                owner[key] = self.one((*_VALUES, *saved_kinds()[0], "cells", "mixture", "normal scores"))
        return pack(meta, arrays)

    def toml(self, data: bytes, other: bytes) -> bytes:
        """Change the schema: a number, a word or a line."""
        meta, arrays = unpack(data)
        lines = meta["schema"].split("\n")
        at = self.below(len(lines))
        match self.below(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, self.one(lines))
            case 2:
                lines[at] = (
                    lines[at].partition("=")[0] + "= " + self.one(("-1", "1e300", "nan", "true", "[]", '"x"', "7"))
                )
            case _:
                lines[at] = lines[at].replace(self.one("0123456789aebn"), self.one("0123456789-xy"))
        return pack({**meta, "schema": "\n".join(lines)}, arrays)

    def cycle(self, data: bytes, other: bytes) -> bytes:
        """Draw the graph of a network or of a graphical model anew, with cycles and unknown columns."""
        meta, arrays = unpack(data)
        for name in {"parents", "order", "factors", "cliques", "columns", "ordered", "latents"} & set(meta["model"]):
            drawn = [sorted({self.below(7) - 1 for _ in range(self.below(4))}) for _ in meta["model"][name]]
            flat = isinstance(meta["model"][name][0], int)
            meta["model"][name] = [sum(some) for some in drawn] if flat else drawn
            if self.below(2):
                break
        return pack(meta, arrays)

    def nest(self, data: bytes, other: bytes) -> bytes:
        """Nest lists or objects deeply in the head."""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        depth = self.one((50, 2_000, 100_000))
        deep = b"[" * depth + b"]" * depth if self.below(2) else b'{"a":' * depth + b"1" + b"}" * depth
        at = members["head.json"].index(self.one((b'"info":', b'"model":', b'"axes":', b'"arrays":')))
        colon = members["head.json"].index(b":", at) + 1
        members["head.json"] = members["head.json"][:colon] + deep + b',"x":' + members["head.json"][colon:]
        return zipped(members)

    def mix(self, data: bytes, other: bytes) -> bytes:
        """Join the head of one file with the arrays of another, or the model of one with the axes of another."""
        (meta, arrays), (theirs, others) = unpack(data), unpack(other)
        match self.below(3):
            case 0:
                return pack(meta, others)
            case 1:
                return pack({**meta, "kind": theirs["kind"], "model": theirs["model"]}, {**arrays, **others})
            case _:
                axes = {name: array for name, array in others.items() if name.startswith("axis")}
                own = {name: array for name, array in arrays.items() if name.startswith("model")}
                return pack({**meta, "axes": theirs["axes"]}, {**own, **axes})

    def names(self, data: bytes, other: bytes) -> bytes:
        meta, arrays = unpack(data)
        name = self.one(arrays)
        arrays[self.one(("model.", "axis0.upper", "axis2.groups", "", name + "0", "axis99.shares"))] = arrays.pop(name)
        return pack(meta, arrays)


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def used(data: bytes, path: Path, rng: np.random.Generator) -> str:
    """Load and sample a file, also under a condition; return what came of it."""
    path.write_bytes(data)
    said, made = "", None
    try:
        made = load(path)
    except FedsynthError as error:
        said = str(error)
    if made is None:
        assert str(path) in said, said
        return "refused"
    assert all(one.isprintable() or one == "\n" for one in str(made) + made._repr_html_())
    frame = made.sample(_ROWS, rng)
    assert len(frame) == _ROWS
    assert list(frame.columns) == [column.name for column in made.schema.columns]
    if "age" in made.schema.names:
        try:
            assert len(made.sample(5, rng, {"age": (20, 60)})) == 5
        except FedsynthError:
            return "a model without such rows"
    return "a model"


def mutate(kinds: str, seed: int, number: int) -> Counter[str]:
    """Load and sample mutated files."""
    mutator, rng = Mutator(seed), np.random.default_rng(seed)
    files = models(kinds)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fedsynth"
        for name, data in files.items():
            assert used(data, path, rng) == "a model", name
        for at in range(number):
            name = list(files)[at % len(files)]
            how, data = mutator.file(files[name], mutator.one(files.values()))
            began = time.process_time()
            try:
                found = used(data, path, rng)
            except Exception as error:
                raise AssertionError(f"{name}, file {at}, {how}: {type(error).__name__}: {error}") from error
            assert time.process_time() - began < 5, (name, at, how)
            seen[found] += 1
    return seen


# ---------------------------------------------------------------------------------------------------------------------
# Bombs


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield files of at most .3 MB that ask for far more memory or time."""
    head, arrays = unpack(models("plain")["graphical"])
    zeros = bytes(1 << 28)

    def archive(change: dict[str, Any], layouts: dict[str, Any], members: dict[str, bytes], how: int = 8) -> bytes:
        return zipped({"head.json": json.dumps({**head, **change, "arrays": layouts}).encode(), **members}, how)

    layout = ["<f8", [1 << 25], "C"]
    yield "an array of zeros", archive({}, {"model.x": layout}, {"model.x": zeros})
    yield "LZMA", archive({}, {"model.x": layout}, {"model.x": bytes(1 << 26)}, zipfile.ZIP_LZMA)
    yield "lies about its length", lying(archive({}, {"model.x": ["<f8", [8], "C"]}, {"model.x": zeros[: 1 << 27]}), 64)
    deep = b"[" + b"[]," * (1 << 24) + b"[]]"
    yield "a long head", zipped({"head.json": b'{"format":2,"arrays":{},"x":' + deep + b"}"})
    many = {f"model.{at}": ["<f8", [0], "C"] for at in range(2000)}
    yield "many arrays", archive({}, many, dict.fromkeys(many, b""))
    overlapping = zipped({"head.json": json.dumps({**head, "arrays": {}}).encode(), "a": zeros[: 1 << 24]})
    yield "overlapping members", overlap(overlapping, 2000)

    def schema(text: str) -> bytes:
        return pack({**head, "schema": f"fedsynth_schema = 1\n{text}"}, arrays)

    values = json.dumps([str(at) for at in range(2000)])
    wide = "".join(f'[[column]]\nname = "{name}"\ntype = "categorical"\nvalues = {values}\n' for name in "abc")
    yield "a rule of 8e9 cells", schema(wide + '[[rule]]\nnever = { a = ["1"], b = ["1"], c = ["1"] }\n')
    numeric = '[[column]]\nname = "{}"\ntype = "numeric"\nlow = 0\nhigh = 1\nbins = 1000000\n'
    yield "4e9 bins", schema("".join(numeric.format(at) for at in range(4000)))
    yield "20,000 columns", schema("".join(f'[[column]]\nname="{at}"\ntype="boolean"\n' for at in range(20_000)))
    columns = 40
    pairs = [[a, b] for a in range(columns) for b in range(a + 1, columns)]
    text = "".join(
        f'[[column]]\nname = "{at}"\ntype = "numeric"\nlow = 0\nhigh = 1\nbins = 10\n' for at in range(columns)
    )
    model = {"sizes": [10] * columns, "total": 1.0, "factors": pairs}
    dense = {f"model.potential_{at}": np.zeros((10, 10)) for at in range(len(pairs))}
    change = {"schema": f"fedsynth_schema = 1\n{text}", "model": model, "axes": ["bins"] * columns}
    yield "a tree of 1e40 cells", pack({**head, **change}, dense)
    assert head["format"] == FORMAT


def lying(data: bytes, length: int) -> bytes:
    """Return an archive whose last member declares this length and no checksum that could be right."""
    found = bytearray(data)
    at = found.rindex(b"PK\x01\x02")
    struct.pack_into("<I", found, at + 16, zlib.crc32(bytes(length)))
    struct.pack_into("<I", found, at + 24, length)
    return bytes(found)


def overlap(data: bytes, times: int) -> bytes:
    """Return an archive whose last member is listed so many times under other names."""
    at = data.rindex(b"PK\x01\x02")
    end = data.rindex(b"PK\x05\x06")
    entry, first = data[at:end], data.index(b"PK\x01\x02")
    entries = data[first:at] + b"".join(
        entry[:28] + struct.pack("<H", 5) + entry[30:46] + f"{number:05}".encode() for number in range(times)
    )
    tail = bytearray(data[end:])
    struct.pack_into("<HHII", tail, 8, times + 1, times + 1, len(entries), first)
    return data[:first] + entries + bytes(tail)


def explode() -> dict[str, Any]:
    """Load the bombs; return what each took."""
    found = {}
    files = list(bombs())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fedsynth"
        used(models("plain")["graphical"], path, np.random.default_rng(0))
        for name, data in files:
            assert len(data) < 350_000, (name, len(data))
            reset_peak()
            before, began = peak(), time.process_time()
            outcome = used(data, path, np.random.default_rng(0))
            found[name] = {
                "outcome": outcome,
                "seconds": time.process_time() - began,
                "megabytes": (peak() - before) / 1024,
            }
    return found


def reset_peak() -> None:
    """Let the peak of this process's memory start again at what it holds now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Return the peak of this process's memory, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main(kinds: str, seed: int = 0, number: int = 0) -> dict[str, Any]:
    """Run one of the programs; return what it counted."""
    logging.disable()
    if kinds == "bombs":
        return explode()
    before = resource.getrusage(resource.RUSAGE_SELF)
    seen = mutate(kinds, seed, number)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {"seen": seen, "megabytes": (after.ru_maxrss - before.ru_maxrss) / 1024, "seconds": after.ru_utime}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
