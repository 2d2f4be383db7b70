"""What a run's released tables say of conditions that nobody declared: as pandas says, or not at all."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from tests.answers.world import SCHEMA, rows

from fedsynth.answers.condition import read_condition
from fedsynth.answers.intervals import Z
from fedsynth.answers.released import ReleasedTable, _cells, estimate, records_of, released_tables
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated

FRAME = rows(3000)
METHODS: dict[str, dict[str, float]] = {"oneshot": {"bins_share": 0.0}, "auto": {}, "fedprivsyn": {"width": 6}}
SHARES = {
    "readmitted=yes": FRAME.readmitted == "yes",
    "ward=cardiology|surgery": FRAME.ward.isin(["cardiology", "surgery"]),
    "ward=missing": FRAME.ward.isna(),
    "ward!=medicine": FRAME.ward.notna() & (FRAME.ward != "medicine"),
    "smoker=true": FRAME.smoker.fillna(False),
    "nights=missing": FRAME.nights.isna(),
}
PAIRS = {
    "readmitted=yes & ward=cardiology": (FRAME.readmitted == "yes") & (FRAME.ward == "cardiology"),
    "sex=f & readmitted=no": (FRAME.sex == "f") & (FRAME.readmitted == "no"),
}
GROUPED = {  # where the schema's own bins of ten years begin
    "age>=70": FRAME.age >= 70,
    "age=20..39": FRAME.age.between(20, 39),
    "age<50 & ward=surgery": (FRAME.age < 50) & (FRAME.ward == "surgery"),
    "age>=70 & readmitted=yes": (FRAME.age >= 70) & (FRAME.readmitted == "yes"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    FRAME.to_parquet(folder / "rows.parquet")
    SCHEMA.save(folder / "schema.toml")
    return folder


def made(home: Path, method: str, epsilon: float, name: str, **more: object) -> list[ReleasedTable]:
    """Return the tables that a run of a method released."""
    fields = {"data": str(home / "rows.parquet"), "schema": str(home / "schema.toml"), "sites": 3, "seed": 0, **more}
    job = Job(method, epsilon, 1e-6, trust="trusted", options=METHODS[method], **fields)  # type: ignore[arg-type]
    return released_tables(RunFolder(run_simulated(job, home / name).folder))


@pytest.fixture(scope="module")
def exact(home: Path) -> dict[str, list[ReleasedTable]]:
    """Tables with hardly any noise, of each method."""
    return {method: made(home, method, 1e4, method) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_with_little_noise_estimates_are_those_of_the_rows(exact, method):
    tables = exact[method]
    said = {**SHARES, **(PAIRS if method != "fedprivsyn" else {}), **(GROUPED if method == "oneshot" else {})}
    for text, mask in said.items():
        share, counted = estimate(tables, SCHEMA, text)
        assert (share.question, share.label, counted.label) == (text, "share", "rows")
        assert share.value == pytest.approx(mask.mean(), abs=2e-3), text
        assert counted.value == pytest.approx(mask.sum(), abs=6), text
        assert counted.sampling == 0
        sampling = 1.96 * math.sqrt(mask.mean() * (1 - mask.mean()) / len(FRAME))
        assert share.sampling == pytest.approx(sampling, rel=0.02)
        assert share.noise is not None
        assert share.noise < 2e-3
    assert records_of(tables)[0] == pytest.approx(len(FRAME), abs=5)


@pytest.mark.parametrize("method", METHODS)
def test_every_released_table_is_the_table_of_the_rows(exact, method):
    """Cell by cell, with the labels of its cells; those of interactions too, which were released as differences."""
    table, checked = encode(SCHEMA, FRAME), 0
    for released in exact[method]:
        if released.parts[0].values.dtype != np.float64:
            continue
        expected = table.tables(released.axes, [tuple(range(len(released.axes)))])[0]
        frame = released.frame
        assert list(frame.columns) == [*released.columns, "count", "std"]
        assert len(frame) == expected.size
        if frame["std"].max() < 2:
            np.testing.assert_allclose(
                frame["count"], expected.ravel(), atol=6 * frame["std"].max() + 0.6
            )  # interactions are rounded
            checked += 1
    assert checked > 5


@pytest.mark.parametrize("method", ["oneshot", "auto"])
def test_cells_have_labels_by_which_their_rows_are_found(exact, method):
    """The label of a cell, read as a condition, is met by the cell's rows."""
    looked_at = set()
    for released in exact[method]:
        if len(released.axes) > 1 or released.columns[0] in looked_at:
            continue
        (name,) = released.columns
        looked_at.add(name)
        frame = released.frame
        for label, count in list(zip(frame[name], frame["count"], strict=True))[:: max(1, len(frame) // 8)]:
            if label != "no value":
                _, counted = estimate(exact[method], SCHEMA, f"{name}={label.replace(' | ', '|')}")
                assert counted.value == pytest.approx(count, abs=6), (name, label)
    assert len(looked_at) > 3


def test_the_interval_of_a_noisy_run_holds_the_rows(home):
    """Of six shares at epsilon 1, all are within 4 deviations of their noise; and noise there is."""
    tables = made(home, "oneshot", 1.0, "noisy")
    for text, mask in SHARES.items():
        _, counted = estimate(tables, SCHEMA, text)
        assert counted.value is not None
        assert counted.noise is not None
        assert abs(counted.value - mask.sum()) < 4 / 1.96 * counted.noise
        assert counted.noise > 5


def test_the_number_of_rows_combines_all_tables(home):
    tables = made(home, "oneshot", 1.0, "combined")
    value, variance = records_of(tables)
    least = min(table.summed(np.ones(table.shape))[1] for table in tables)
    assert variance < least
    assert abs(value - len(FRAME)) < 4 * math.sqrt(variance)
    assert records_of([]) == (0.0, math.inf)


def test_tables_that_share_a_margin_count_once(home):
    """Each pair that is completed by the same margin says the same of the column, with the same noise."""
    tables = made(home, "auto", 1.0, "shared")
    condition = read_condition(SCHEMA, "readmitted=yes")
    said = [(table.step, *table.summed(of)) for table in tables if (of := _cells(table, condition)) is not None]
    last = [(value, variance) for step, value, variance in said if step == max(said)[0]]
    assert len(last) > 2
    _, counted = estimate(tables, SCHEMA, "readmitted=yes")
    assert counted.value == pytest.approx(last[0][0])
    assert counted.noise == pytest.approx(Z * math.sqrt(min(variance for _, variance in last)), rel=1e-6)


def test_declared_questions_count_as_released_tables(home):
    question = ({"kind": "cross", "name": "c", "columns": ["ward", "smoker", "sex"]},)
    tables = made(home, "oneshot", 1e4, "declared", question=question)
    declared = [table for table in tables if table.declared]
    assert [table.columns for table in declared] == [("ward", "smoker", "sex")]
    mask = (FRAME.ward == "surgery") & FRAME.smoker.fillna(False) & (FRAME.sex == "f")
    _, counted = estimate(tables, SCHEMA, "ward=surgery & smoker=true & sex=f")
    assert counted.value == pytest.approx(mask.sum(), abs=6)


# ---------------------------------------------------------------------------------------------------------------------
# What was not released

REFUSED = [
    ("oneshot", "age>=72", r"age was released in groups that do not end there; age>=70 or age>=80 can be said"),
    ("oneshot", "age=71..79", r"age>=70 or age>=80 can be said"),
    (
        "oneshot",
        "sex=f & ward=surgery & smoker=true",
        r"no released table has sex and ward and smoker.*; conditions on",
    ),
]


@pytest.mark.parametrize(("method", "text", "says"), REFUSED)
def test_what_no_table_holds_is_refused_with_two_conditions_that_one_does(exact, method, text, says):
    with pytest.raises(Unsupported, match=says) as caught:
        estimate(exact[method], SCHEMA, text)
    offered = re.findall(r"age>=\d+", str(caught.value).partition("there; ")[2])
    offered += re.findall(r"conditions on (\w+) & (\w+) or on (\w+) & (\w+) alone", str(caught.value))
    assert offered
    for name in [of for of in offered if isinstance(of, str)]:
        share, _ = estimate(exact[method], SCHEMA, name)
        assert share.value is not None


def test_a_condition_of_merged_values_is_refused_with_the_groups_that_there_are(home):
    """Whatever groups of a number or of codes a method chose, what it offers in place of others can be said."""
    tables, refused = made(home, "auto", 1.0, "coarse"), 0
    for text in ("bill>=777.77", "nights>=13", "age>=33", "age>=71"):
        try:
            estimate(tables, SCHEMA, text)
        except Unsupported as error:
            refused += 1
            offered = re.findall(r"\w+>=[\d.]+\d", str(error).partition("there; ")[2])
            assert len(offered) == 2
            for name in offered:
                assert estimate(tables, SCHEMA, name)[0].value is not None
    assert refused


def test_no_condition_and_wrong_ones_are_refused(exact):
    for text, error in (("", Unsupported), ("moon=1", InvalidParameter), ("ward=moon", SchemaError)):
        with pytest.raises(error):
            estimate(exact["oneshot"], SCHEMA, text)


def test_what_noise_hides_is_refused(home):
    """Rows are 3,000, and the noise of a count is hundreds."""
    tables = made(home, "oneshot", 0.03, "drowned")
    with pytest.raises(Unsupported, match="the noise of the released tables hides it"):
        estimate(tables, SCHEMA, "readmitted=yes & ward=cardiology")


def test_a_cell_with_rows_of_both_kinds_is_not_taken_for_either(exact):
    table = next(of for of in exact["oneshot"] if of.columns == ("age",))
    assert _cells(table, read_condition(SCHEMA, "age>=70")) is not None
    assert _cells(table, read_condition(SCHEMA, "age>=71")) is None
    assert _cells(table, read_condition(SCHEMA, "sex=f")) is None
