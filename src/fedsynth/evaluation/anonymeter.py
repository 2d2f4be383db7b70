"""Optional: the three risks of Anonymeter (singling out, linkability, inference), run in a Python of its own.

Anonymeter 1.1 (Giomi et al. 2023, arXiv 2211.10459, doi 10.56553/popets-2023-0055) needs numpy < 1.27, which
fedsynth does not run on, so it lives in another environment and gets its rows through files. Its authors have a
patent pending (US 2023/0401336 A1), and its licence, Clear BSD, grants no patent rights: clear the use with
whoever advises you. fedsynth's own attacks need none of it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsynth.errors import Unsupported
from fedsynth.evaluation.distances import drawn
from fedsynth.evaluation.features import is_numeric
from fedsynth.evaluation.privacy import Findings
from fedsynth.evaluation.score import Evidence, Measured, Score, Verdict
from fedsynth.rows import Table

_SETUP = "python3 -m venv anonymeter-env && anonymeter-env/bin/pip install anonymeter==1.1.0"
_MAX_ROWS = 50_000
_ATTEMPTS = 100  # queries tried per singling-out attack asked for; some tables have no row to single out

# Runs in the other environment, which has no fedsynth.
_SCRIPT = """
import json, warnings
import numpy as np, pandas as pd
from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator

with open("job.json") as file:
    job = json.load(file)
numeric, attacks = set(job["numeric"]), job["attacks"]
types = {name: "float64" if name in numeric else "str" for name in job["columns"]}
tables = {name: pd.read_csv(name + ".csv", dtype=types) for name in ("ori", "syn", "control")}
tables["n_attacks"] = attacks
np.random.seed(job["seed"])


def measured(make, **how):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            evaluator = make().evaluate(**how)
            found, risk = evaluator.results(0.95), evaluator.risk(0.95)
        except Exception as error:  # told to the caller, risk by risk
            return {"failed": type(error).__name__ + ": " + str(error)}
    rates = {name: getattr(found, name + "_rate").value for name in ("attack", "baseline", "control")}
    doubts = sorted({str(one.message) for one in said if "trusted" in str(one.message) or "100%" in str(one.message)})
    return {"risk": [risk.value, *risk.ci], **rates, "doubts": doubts}


def single(columns, mode):
    how = {"n_cols": columns, "seed": job["seed"], "max_attempts": job["attempts"]}
    return measured(lambda: SinglingOutEvaluator(**tables, **how), mode=mode)


def linked():
    return measured(lambda: LinkabilityEvaluator(**tables, aux_cols=tuple(job["linked"]), n_neighbors=10), n_jobs=1)


def inferred(secret):
    how = {"aux_cols": [name for name in job["columns"] if name != secret], "regression": secret in numeric}
    return measured(lambda: InferenceEvaluator(**tables, secret=secret, **how), n_jobs=1)


found = {"singling out by one column": single(1, "univariate")}
if len(job["columns"]) > 1:
    several = min(3, len(job["columns"]))
    found["singling out by %d columns" % several] = single(several, "multivariate")
    found["linkability"] = linked()
    for name in job["secrets"]:
        found["inference of " + name] = inferred(name)
with open("found.json", "w") as file:
    json.dump(found, file)
"""


def anonymeter_risks(
    evidence: Evidence,
    python: Path,
    *,
    secrets: Sequence[str] = (),
    attacks: int = 500,
    seed: int = 0,
    timeout: float = 3600.0,
) -> Findings:
    """Return Anonymeter's risks, each with its 95 % band, from 0 (what the hold-out suffers as well) to 1.

    ``python`` is the interpreter of an environment with anonymeter 1.1. The attacker of singling out uses one
    column, and up to three; linkability joins the columns at even places of the schema with those at odd places;
    inference of each of ``secrets`` (default: the last column that holds no numbers) knows all other columns.
    At most 50,000 rows of each table, ``attacks`` attacks, and no more training rows than hold-out rows: where
    there are, singling out sees a risk even in synthetic rows that nobody copied. A numeric column with a
    missing value goes as its bins, for Anonymeter's distance knows no gaps. Values travel through a private
    temporary directory, as numbers and codes, never as labels. What Anonymeter fails at is in the notes.
    Raises :class:`Unsupported` without hold-out rows, without anonymeter, and when it runs longer than
    ``timeout`` seconds.
    """
    if evidence.holdout is None:
        raise Unsupported("Anonymeter's risks need hold-out rows as control; keep some back")
    _ask(python, timeout)
    rng = np.random.default_rng(seed)
    control, syn = (drawn(table, _MAX_ROWS, rng) for table in (evidence.holdout, evidence.synthetic))
    ori = drawn(evidence.real, len(control), rng)
    schema = ori.schema
    columns = range(len(schema.names))
    numeric = [
        j
        for j in columns
        if is_numeric(ori, j) and not any(np.isnan(table.numbers[j]).any() for table in (ori, syn, control))
    ]
    categories = [j for j in columns if not is_numeric(ori, j)]
    asked = [schema.index(name) for name in secrets] or categories[-1:]
    many = min(attacks, len(ori), len(control), len(syn))
    job = {
        "columns": [_name(j) for j in columns],
        "numeric": [_name(j) for j in numeric],
        "linked": [[_name(j) for j in columns[::2]], [_name(j) for j in columns[1::2]]],
        "secrets": [_name(j) for j in asked],
        "attacks": many,
        "attempts": _ATTEMPTS * attacks,
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, table in (("ori", ori), ("syn", syn), ("control", control)):
            _frame(table, numeric).to_csv(Path(folder, name + ".csv"), index=False)
        Path(folder, "job.json").write_text(json.dumps(job), encoding="utf-8")
        _run([str(python), "-c", _SCRIPT], folder, timeout)
        found = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    titles = {f"inference of {_name(j)}": f"inference of {schema.names[j]}" for j in asked}
    findings = Findings()
    for name, result in found.items():
        title = f"Anonymeter: {titles.get(name, name)}"
        if "failed" in result:
            findings.notes.append(f"{title}: not computed, Anonymeter says {result['failed']}")
        else:
            findings.scores.append(_score(title, result, many, len(ori)))
    return findings


def _score(title: str, result: dict[str, Any], attacks: int, rows: int) -> Score:
    """Return a risk; a look where its band leaves 0, an alarm above 0.1, no verdict where Anonymeter has doubts."""
    risk = Measured(*result["risk"])
    verdict: Verdict = "alarm" if risk.low > 0.1 else "look" if risk.low > 0 else "good"
    says = (
        f"The attack succeeds in {result['attack']:.1%} of tries on people in the table and in {result['control']:.1%} "
        f"on people outside it; of what it could gain beyond the latter, it gains {risk.value:.1%}."
    )
    if result["doubts"]:
        verdict, says = "", f"Anonymeter itself doubts this figure: {' '.join(result['doubts'])}"
    return Score(
        "privacy",
        title,
        risk,
        Measured(0.0),
        "hold-out rows, by definition",
        0.0,
        f"{attacks} attacks on {rows} training rows and as many hold-out rows; guessing succeeds in "
        f"{result['baseline']:.1%} of tries",
        verdict=verdict,
        says=says,
    )


def _ask(python: Path, timeout: float) -> None:
    try:
        answer = subprocess.run(
            [str(python), "-c", "import anonymeter"], capture_output=True, timeout=timeout, check=False
        )
    except OSError as error:
        raise Unsupported(f"no Python runs at {python}; set one up: {_SETUP}") from error
    if answer.returncode:
        raise Unsupported(f"{python} has no anonymeter; set one up: {_SETUP}")


def _run(command: list[str], folder: str, timeout: float) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unsupported(f"Anonymeter ran longer than {timeout:g} s; ask for fewer attacks") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise Unsupported(f"Anonymeter failed: {' '.join(last)}; is it version 1.1? set it up anew: {_SETUP}")


def _name(column: int) -> str:
    return f"c{column}"


def _frame(table: Table, numeric: Sequence[int]) -> pd.DataFrame:
    """Return numbers, and codes as text that no reader takes for a number or a gap."""
    return pd.DataFrame(
        {
            _name(j): table.numbers[j] if j in numeric else np.char.add("v", codes.astype(str))
            for j, codes in enumerate(table.codes)
        }
    )
