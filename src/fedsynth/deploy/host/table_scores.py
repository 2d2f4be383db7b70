"""Scores of a synthetic table against one site's own rows, for that site alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedsynth.data.read import read_table
from fedsynth.deploy.host.config import SiteConfig
from fedsynth.deploy.host.rows import load_rows
from fedsynth.deploy.host.state import site_secret
from fedsynth.encoding import publish
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.schema import Schema

if TYPE_CHECKING:
    from fedsynth.evaluation.report import Evaluation


def table_scores(config: SiteConfig, file: Path) -> Evaluation:
    """Return the scores of a first report for the synthetic table in a file, beside the rows of a site.

    Nothing leaves the site, and nothing is charged: the scores are computed without noise, and not for others. Raises
    :class:`~fedsynth.errors.Unsupported` for a site that counts or streams its rows, and
    :class:`~fedsynth.errors.SchemaError` for a table that does not fit the site's schema.
    """
    from fedsynth.evaluation.evaluate import evaluate
    from fedsynth.evaluation.score import EvaluationTables
    from fedsynth.evaluation.settings import EvaluationSettings

    if not config.holds_rows:
        raise Unsupported(
            f"{config.name} counts or streams its rows, and scores need them one by one; export a part of them for "
            f"fedsynth evaluate {file} --real FILE"
        )
    schema = Schema.load(config.schema)
    synthetic = read_table(file, schema.plain(), records="rfc4180" if file.suffix == ".csv" else None)
    if synthetic.left_out:
        raise SchemaError(
            f"{synthetic.left_out} of the {synthetic.rows_read} rows of {file} do not fit the site's schema; give the "
            "table of a run under this schema"
        )
    real = publish(schema, load_rows(config, schema, site_secret(config), quiet=True))
    return evaluate(EvaluationTables(real, synthetic, None, agreed=schema), EvaluationSettings(repeats=1))
