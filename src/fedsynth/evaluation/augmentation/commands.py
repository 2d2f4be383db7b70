"""The command ``fedsynth augment``."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.options import say
from fedsynth.files import Records
from fedsynth.progress import shown
from fedsynth.text import table as aligned

if TYPE_CHECKING:
    from fedsynth.evaluation.augmentation.site import Augmentation
    from fedsynth.rows import Table

_LARGEST_SEED = 2**31 - 1  # scikit-learn's learners refuse seeds beyond 32 bits
_PRIVATE = (
    "What was written here is computed from, or holds, the site's own rows: it is not private and stays at the site."
)
_HEADS = {"own": "own rows", "all": "all sites", "holdout": "hold-out"}


def augment(
    own: Path,
    synthetic: Path,
    /,
    *,
    schema: Path,
    target: str,
    out: Path,
    holdout: Path | None = None,
    judge: Literal["own", "all"] | None = None,
    records: Records | None = None,
    person: str = "",
    suite: str = "boosting",
    repeats: Annotated[int, Meta(ge=2, le=100)] = 5,
    seed: Annotated[int, Meta(ge=0, le=_LARGEST_SEED)] = 0,
    json_: bool = False,
) -> None:
    r"""Find out whether synthetic rows make a site's own classifier better.

    Learners predict --target after training on the site's rows alone, and on these with ever more synthetic rows of all
    sites beside them. Each is tested on rows that it was not trained on, and the number of synthetic rows is chosen on
    others again. --out gets augmentation.html, the scores as a page with a plot, and, where synthetic rows are a clear
    gain, augmented.csv, the rows to train any classifier on: the site's rows, then the synthetic ones. Both are of the
    site's rows, without noise: they stay at the site, and so does a classifier that was trained on them.

    The site's rows are among those that the synthetic rows were made from, which can make these look better on them,
    within what their guarantee allows; rows that no site contributed (--holdout) are free of that.

    Examples:

      fedsynth augment mine.csv synthetic.csv --schema agreed.toml \
        --target readmitted --out augmented

      fedsynth augment mine.csv synthetic.csv --schema agreed.toml \
        --target readmitted --judge all --holdout later.csv --out augmented

    Parameters
    ----------
    own
        The site's rows: CSV or Parquet file.
    synthetic
        Synthetic rows of all sites: CSV file (RFC 4180, as fedsynth and pandas write it) or Parquet file.
    schema
        Schema file (TOML) of the tables: name, kind and public bounds or categories of each column.
    target
        Column to predict.
    out
        Folder for augmentation.html and augmented.csv; it must not exist yet.
    holdout
        Other real rows, which the method never saw, to test on only: CSV or Parquet file.
    judge
        Rows that decide how many synthetic rows to add: own, for a classifier that is used on rows such as the site's,
        or all, for one that is used on rows such as those of all sites, for which synthetic rows stand that no learner
        was trained on. Default: own, or all if the site's rows hold one value of --target only.
    person
        Column of the site's rows that tells which person a row is about; no person is on both sides of a test.
    suite
        Set of learners, whose mean score counts: boosting, default, or that of a publication (docs/evaluation.md).
    repeats
        Number of draws of the rows to train on, to choose by and to test on.
    seed
        Whole number that fixes these draws.
    """
    from fedsynth.data.read import column_names, read_frame, write_frame
    from fedsynth.data.sources.files import is_csv
    from fedsynth.evaluation.augmentation.site import augment as measure
    from fedsynth.evaluation.suites import find_suite
    from fedsynth.files import private_folder, write_private
    from fedsynth.runs.folder import read_whole, written_kind
    from fedsynth.schema import Schema

    find_suite(suite)
    if out.exists():
        raise errors.FedsynthError(f"{out} exists; choose another --out")
    agreed = Schema.load(schema)
    kinds = {file: records if is_csv(file) else None for file in (own, *([holdout] if holdout else []))}
    kinds[synthetic] = written_kind(synthetic)
    plain = agreed.plain(column_names(own, records=kinds[own]))

    def whole(file: Path, persons: str = "") -> Table:
        return read_whole(file, plain, agreed, kinds[file], persons)

    with shown(not json_) as progress:
        found = measure(
            whole(own, person),
            whole(synthetic),
            target,
            by=judge,
            holdout=whole(holdout) if holdout else None,
            suite=suite,
            repeats=repeats,
            seed=seed,
            progress=progress,
        )
    private_folder(out)
    page = out / "augmentation.html"
    write_private(page, _page(found))
    text = [_table(found), "", f"{found}"]
    facts = {"augmentation": _facts(found), "page": str(page), "rows": None}
    if found.helps:
        import pandas as pd

        names = [column.name for column in plain.columns]
        real, made = (read_frame(file, names, records=kinds[file]) for file in (own, synthetic))
        many = round(len(real) * found.amounts[found.best] / found.own_rows)
        path = out / "augmented.csv"
        write_frame(pd.concat([real, made.head(many)], ignore_index=True), path)
        path.chmod(0o600)
        facts["rows"] = str(path)
        text.append(f"{path}: {len(real):,} rows of the site, then {min(many, len(made)):,} synthetic ones.")
    text += [_PRIVATE, f"Page: {page}"]
    say(json_, facts, "\n".join(text))


def _table(found: Augmentation) -> str:
    lines = [["synthetic rows", *(_HEADS[rows] for rows in found.tested)]]
    for place, amount in enumerate(found.amounts):
        means = [sum(scores[place] for scores in each) / len(each) for each in found.tested.values()]
        lines.append([f"{amount:,}", *(f"{mean:.3f}" for mean in means)])
    gains = [found.gain(rows) for rows in found.tested]
    lines.append(["gain when chosen", *(f"{gain:+.3f} ± {error:.3f}" for gain, error in gains)])
    head = (
        f"{found.score} for {found.target}: learners trained on {found.own_rows:,} rows of the site and synthetic rows."
    )
    note = "Tested on rows that were in no training; all sites: synthetic rows stand for theirs."
    return f"{head}\n{note}\n\n{aligned(lines)}"


def _facts(found: Augmentation) -> dict[str, object]:
    gains = {rows: dict(zip(("gain", "error"), found.gain(rows), strict=True)) for rows in found.tested}
    return asdict(found) | {"gains": gains, "best": found.amounts[found.best], "helps": found.helps}


def _page(found: Augmentation) -> str:
    import numpy as np

    from fedsynth.evaluation.augmentation.site import TESTED_ON
    from fedsynth.evaluation.plots import LINE_STYLE, curves, svg

    lines = {}
    for rows, scores in found.tested.items():
        means, deviations = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
        points = zip(found.amounts, means, deviations, strict=True)
        lines[f"tested on {TESTED_ON[rows]}"] = [(found.own_rows + x, float(y), float(d)) for x, y, d in points]
    label = f"{found.score} by training rows ({found.own_rows:,} of the site, the others synthetic); means ± sd"
    style = resources.files("fedsynth.evaluation").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Augmentation</title><style>{style}{LINE_STYLE}</style></head><body><main><h1>Synthetic rows for "
        f'{escape(found.target)}</h1><p class="lead">{escape(str(found))}</p><p class="notice warn">{_PRIVATE}</p>'
        f'<div class="grid"><figure class="card"><figcaption>{escape(label)}</figcaption>'
        f"{svg(curves(label, lines))}</figure></div><pre>{escape(_table(found))}</pre></main></body></html>\n"
    )
