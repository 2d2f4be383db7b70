"""The front door: from a data frame to a report, over one table, several sites, and a real federation."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.deploy.flower_world import lay_out, seeded_salts
from tests.pages import blocks

import fedsynth as fs
from fedsynth.datasets import patients, patients_schema
from fedsynth.deploy.files.site import FileAnswerer
from fedsynth.encoding import encode
from fedsynth.errors import DataWarning, FedsynthError, InvalidParameter, SchemaError, Unsupported
from fedsynth.federation.local import LocalNoise
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.registry import name_of
from fedsynth.persons import identify
from fedsynth.platforms import POSIX
from fedsynth.rows import Table
from fedsynth.runs.job import Job

SCHEMA = fs.Schema(
    (
        fs.Categorical("sex", ("f", "m")),
        fs.Numeric("age", 0, 120, bins=12, integer=True),
        fs.Categorical("income", ("low", "high")),
    )
)


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    rich = rng.random(rows) < age / 100
    return pd.DataFrame(
        {"sex": np.where(rng.random(rows) < 0.5, "f", "m"), "age": age, "income": np.where(rich, "high", "low")}
    )


@pytest.fixture(scope="module")
def fitted() -> fs.Synthesizer:
    return fs.fit(people(2000, 0), SCHEMA, epsilon=1, delta=1e-6, method="oneshot")


def test_from_a_frame_to_a_report(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("jinja2")
    frame = people(3000, 0)
    schema = fs.Schema.draft(frame)
    assert schema.drafted
    assert not schema.confirmed().drafted
    train, held = fs.split(frame, holdout=0.1)
    assert len(train) + len(held) == 3000
    told: list[str] = []
    made = fs.fit(train, schema, epsilon=1, delta=1e-6, progress=lambda what, done, total: told.append(what))
    assert told == ["auto", "auto"]
    assert len(made.sample(1000)) == 1000
    assert set(made.sample(50, where={"sex": "f"})["sex"]) == {"f"}
    assert made.statement is not None
    assert str(made.statement).startswith(
        "NOT FOR PUBLICATION: Whoever ran this saw all rows. Against everybody else, the synthetic data are (1, 1e-06)-"
    )
    found = fs.evaluate(
        made, train=train, holdout=held, target="income", metrics=["column-similarity", "membership-inference"]
    )
    found.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "membership" in page
    assert made.statement.sentence in page
    assert all(condition in page for condition in made.statement.conditions if "'" not in condition)
    assert "certainty" in page
    attack = next(score for score in found.scores if score.metric == "membership-inference")
    assert math.isfinite(attack.bound)  # that of the synthesizer's own guarantee
    assert "membership AUC" in str(found)
    assert "membership AUC" in found._repr_html_()


def test_the_guarantee_travels_with_the_model(fitted: fs.Synthesizer, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.fedsynth")
    again = fs.load(tmp_path / "model.fedsynth")
    assert again.statement == fitted.statement
    assert again.statement is not None
    assert again.statement.headline == "(1, 1e-06)-differentially private against everybody except whoever ran this"
    assert again.statement.simulated
    assert again.statement.records == pytest.approx(fitted.model.total)
    assert again.releases == fitted.releases
    assert [one.query for one in again.releases] == ["sum counts"]
    assert again.releases[0].share == pytest.approx(1.0)
    text = str(again)
    assert text == str(fitted)
    assert again.statement.text in " ".join(text.split())
    assert "sum counts" in text
    assert "&lt;" not in again._repr_html_().split("<pre>")[0]
    said = re.escape(again.statement.headline)
    assert re.fullmatch(rf"<Synthesizer: oneshot, 3 columns, about [\d,]+ records, {said}>", repr(again))


def test_a_method_that_is_called_by_hand_states_its_guarantee_too() -> None:
    federation = fs.federate([people(500, 0)], SCHEMA, fs.Budget(1, 1e-6), trust=LocalNoise(), seed=1)
    made = OneShot().fit(federation)
    assert made.statement is not None
    assert replace(made.statement, records=None) == federation.statement
    assert made.statement.seeded
    assert made.releases == federation.ledger.summary()


def test_rows_of_several_sites_come_as_frames_files_and_tables(tmp_path: Path) -> None:
    people(400, 1).to_csv(tmp_path / "south.csv", index=False)
    people(300, 2).to_parquet(tmp_path / "east.parquet")
    sites: dict[str, pd.DataFrame | Table | Path | str] = {
        "north": people(500, 0),
        "south": tmp_path / "south.csv",
        "east": str(tmp_path / "east.parquet"),
        "west": encode(SCHEMA, people(200, 3)),
    }
    made = fs.fit(
        sites,
        SCHEMA,
        epsilon=2,
        delta=1e-6,
        method="oneshot",
        trust="secure",
        trust_options={"min_honest": 3},
        options={"pair_share": 0.5},
    )
    assert made.statement is not None
    assert made.statement.terms.trust == "secure"
    assert made.releases[0].sites == 4
    assert fs.read_table(tmp_path / "south.csv")["age"].tolist() == [str(age) for age in people(400, 1)["age"]]
    pd.testing.assert_frame_equal(fs.read_table(tmp_path / "south.csv", SCHEMA), people(400, 1))
    pd.testing.assert_frame_equal(fs.read_table(tmp_path / "east.parquet"), people(300, 2))
    columns = fs.read_table(tmp_path / "south.csv", columns=["income", "sex"])
    assert list(columns) == ["income", "sex"]
    with pytest.raises(SchemaError, match=r"schema is of the type list; .*columns=\[...\]"):
        fs.read_table(tmp_path / "south.csv", ["sex"])  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=r"has no columns \['sexe'\]; it has sex, age, income"):
        fs.read_table(tmp_path / "south.csv", columns=["sexe"])


def test_scores_of_text_are_those_of_values(tmp_path: Path, fitted: fs.Synthesizer) -> None:
    people(900, 1).to_csv(tmp_path / "rows.csv", index=False)
    text, typed = fs.read_table(tmp_path / "rows.csv"), fs.read_table(tmp_path / "rows.csv", SCHEMA)
    metrics = ["column-similarity", "pair-similarity", "correlation-difference"]
    expected = fs.evaluate(fitted, train=people(900, 1)[:700], holdout=people(900, 1)[700:], metrics=metrics).frame
    for frame in (text, typed):
        found = fs.evaluate(fitted, train=frame[:700], holdout=frame[700:], metrics=metrics).frame
        pd.testing.assert_frame_equal(found, expected)
    first, second = (
        fs.compare(frame, SCHEMA, methods=["oneshot"], epsilon=1, seeds=1).frame for frame in (text, typed)
    )
    pd.testing.assert_frame_equal(first, second)
    pd.testing.assert_frame_equal(fs.split(typed, seed=1)[1], fs.split(people(900, 1), seed=1)[1])


def test_persons_of_a_file_are_those_of_its_rows(tmp_path: Path) -> None:
    """Read as they stand: "07" and "7" are two persons, whatever other rows hold."""
    frame = people(90, 1).assign(who=["7", "07", "7.0"] * 30)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for train in (
        tmp_path / "rows.csv",
        fs.read_table(tmp_path / "rows.csv"),
        fs.read_table(tmp_path / "rows.csv", SCHEMA),
    ):
        with pytest.warns(DataWarning, match="80 of the 90 rows are not used: at most 5 of each 'who' are"):
            fs.fit(train, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", person="who", rows_per_person=5)


@pytest.mark.parametrize(("sites", "trust"), [(1, "trusted"), (2, "local"), (3, "secure"), (5, "secure")])
def test_the_trust_follows_from_the_number_of_sites(sites: int, trust: str) -> None:
    frames = [people(200, seed) for seed in range(sites)]
    made = fs.fit(frames, SCHEMA, epsilon=1, delta=1e-6, method="oneshot")
    assert made.statement is not None
    assert made.statement.terms.trust == trust
    assert Job("oneshot", 1, 1e-6, data="x.csv", sites=sites).trust == trust


def test_a_method_that_does_not_run_under_the_trust_is_refused_with_the_word_to_add() -> None:
    frames = {name: people(200, seed) for seed, name in enumerate(("north", "south", "east"))}
    with pytest.raises(Unsupported, match="mst does not run under the trust secure; add --trust trusted"):
        fs.fit(frames, SCHEMA, epsilon=1, delta=1e-6, method="mst")
    with pytest.raises(Unsupported, match="oneshot does not run under the trust three-servers"):
        fs.fit(frames, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", trust="three-servers")


def test_methods_are_compared_each_under_a_trust_that_it_runs_under() -> None:
    pytest.importorskip("sklearn")
    compared = fs.compare(
        people(400, 0), SCHEMA, methods=["oneshot", "mst"], epsilon=1, delta=1e-6, sites=3, seeds=1
    ).frame
    synthetic = compared[compared["arm"] == "federated"]
    assert dict(zip(synthetic["method"], synthetic["trust"], strict=True)) == {"oneshot": "secure", "mst": "trusted"}
    advice = fs.advise(SCHEMA, rows=900, sites=2, epsilon=1, delta=1e-6, methods=["oneshot", "mst"], tables=1).frame
    assert dict(zip(advice["method"], advice["trust"], strict=True)) == {"oneshot": "local", "mst": "trusted"}


def test_a_target_is_given_by_its_name_and_methods_and_trusts_as_objects_too() -> None:
    frame = people(600, 0)
    made = fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, method=OneShot(), trust=LocalNoise(), seed=2)
    assert made.statement is not None
    assert made.statement.terms.trust == "local"
    assert made.info["method"] == name_of(OneShot()) == "oneshot"
    assert fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, method="tda", target="income").info["method"] == "tda"
    with pytest.raises(SchemaError, match="no column 'incom' in the schema; did you mean 'income'"):
        fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, target="incom")
    with pytest.raises(Unsupported, match="no method named 'onesho'; did you mean 'oneshot'"):
        fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, method="onesho")
    with pytest.raises(Unsupported, match="oneshot has no option rate"):
        fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", options={"rate": 1})
    with pytest.raises(InvalidParameter, match="epsilon must be a positive number"):
        fs.fit(frame, SCHEMA, epsilon=0, delta=1e-6)


def test_no_more_rows_of_a_person_are_used_than_the_unit_says() -> None:
    frame = people(300, 0).assign(who=np.arange(300) // 3)
    with pytest.warns(DataWarning, match="200 of the 300 rows are not used"):
        made = fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", person="who")
    assert made.statement is not None
    assert "each row" in made.statement.sentence


def test_a_split_holds_out_each_row_or_person_by_itself() -> None:
    frame = people(4000, 0).assign(who=np.arange(4000) // 4)
    train, held = fs.split(frame, 0.25, seed=0)
    assert len(held) == pytest.approx(1000, abs=120)  # four standard deviations
    assert sorted([*train.index, *held.index]) == list(range(4000))
    by_person = fs.split(frame, 0.25, person="who", seed=0)
    assert not set(by_person[0]["who"]) & set(by_person[1]["who"])
    assert len(set(by_person[1]["who"])) == pytest.approx(250, abs=60)
    # Another row more, or one less, moves no other one: the draws of the rows before it are the same.
    pd.testing.assert_frame_equal(fs.split(frame[:-1], 0.25, seed=0)[1], held[held.index < 3999])
    nobody = frame.assign(who=None)
    assert 0 < len(fs.split(nobody, 0.25, person="who", seed=0)[1]) < 4000
    for share in (0, 1, -0.1):
        with pytest.raises(InvalidParameter, match="must lie between 0 and 1"):
            fs.split(frame, share)
    with pytest.raises(InvalidParameter, match="a side of the split of 1 rows has none"):
        fs.split(frame[:1], 0.5)
    with pytest.raises(SchemaError, match="no column 'whom'"):
        fs.split(frame, person="whom")


def test_a_draft_names_the_columns_that_it_leaves_out() -> None:
    frame = people(200, 0).assign(key=[f"patient {at}" for at in range(200)])
    with pytest.warns(DataWarning, match=r"the draft leaves columns out:\n- key: .*identifier"):
        schema = fs.Schema.draft(frame)
    assert schema.names == ("sex", "age", "income")


def test_advice_is_a_frame() -> None:
    found = fs.advise(SCHEMA, rows=2000, sites=2, epsilon=1, delta=1e-6, methods=["oneshot", "fednaivebayes"], tables=1)
    assert set(found.frame["method"]) == {"oneshot", "fednaivebayes"}
    assert (found.frame["2-way error, least"] <= found.frame["2-way error"]).all()
    assert "oneshot" in str(found)
    assert "<table" in found._repr_html_()


def test_methods_and_budgets_are_compared_on_held_out_rows() -> None:
    pytest.importorskip("sklearn")
    found = fs.compare(people(800, 0), SCHEMA, methods=["oneshot", "fednaivebayes"], epsilon=[0.5, 2], seeds=2)
    frame = found.frame
    assert set(frame["method"]) == {"oneshot", "fednaivebayes", "test rows"}
    assert set(frame["epsilon"]) == {"0.5", "2", ""}
    assert set(frame["seed"]) == {0, 1}
    lost = found.means["mean"].xs("pairwise correlation difference", level="metric")
    assert (
        lost["oneshot", "trusted", "2"].item() < lost["fednaivebayes", "trusted", "2"].item() / 2
    )  # of independent columns
    assert "column similarity" in str(found)
    assert "<table" in found._repr_html_()
    for said in (str(found), repr(found), found._repr_html_()):
        assert "computed from real rows, and no guarantee covers them: do not publish them" in said


@pytest.mark.skipif(not POSIX, reason="a federation needs a POSIX system: tests/test_platforms.py")
def test_a_real_federation_is_a_run_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded_salts(monkeypatch)
    root, exchange = tmp_path / "federation", tmp_path / "exchange"
    exchange.mkdir()
    tables = {
        name: encode(SCHEMA, people(rows, at)) for at, (name, rows) in enumerate({"north": 300, "south": 200}.items())
    }
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=fs.Budget(2.0, 1e-6), min_sites=2)
    answerers = [FileAnswerer(root / "sites" / name, exchange, lambda said: None, poll=0.05) for name in tables]
    serving = [threading.Thread(target=one.serve) for one in answerers]
    for thread in serving:
        thread.start()
    try:
        run = fs.load_run(root)
        made = run.fit(exchange=exchange, progress=True)
    finally:
        for one in answerers:
            one.stop()
        for thread in serving:
            thread.join()
    assert made.statement is not None
    assert made.statement.headline == "(2, 1e-06)-differentially private"
    assert run.out.is_run
    assert run.fit(exchange=tmp_path / "gone").statement == made.statement  # complete: nobody is asked again
    with pytest.raises(fs.FedsynthError, match=r"holds no job\.toml; give the folder written by"):
        fs.load_run(tmp_path)


@pytest.mark.slow
def test_the_readmes_lines_run_in_a_notebook_which_shows_progress(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    (code,) = (block.text for block in blocks("README.md") if block.kind == "python")
    patients(2000).to_csv(tmp_path / "patients.csv", index=False)
    lines = code.replace("delta=1e-6)", "delta=1e-6, progress=True)") + "\nsynth"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(lines)])
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (cell,) = book.cells
    pages = "".join(str(one["data"].get("text/html", "")) for one in cell.outputs if "data" in one)
    assert "<progress value=" in pages
    assert "differentially private" in pages
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epsilon": "1"}, "epsilon must be a number, not '1'"),
        ({"epsilon": None}, "epsilon must be a number, not None"),
        ({"epsilon": True}, "epsilon must be a number, not True"),
        ({"epsilon": [1]}, "epsilon must be a number"),
        ({"delta": "1e-6"}, "delta must be a number, not '1e-6'"),
        ({"delta": math.nan}, "delta must be at least 0"),
        ({"epsilon": math.nan}, "epsilon must be a positive number"),
        ({"rows_per_person": 2**21}, "must be a whole number from 1 to"),
        ({"trust": "secure", "trust_options": {"min_honest": math.nan}}, "min_honest must be a whole number"),
        ({"trust": "secure", "trust_options": {"min_honest": 1.5}}, "min_honest must be a whole number"),
        ({"trust": "secure", "trust_options": {"dropouts": math.nan}}, "dropouts must be a whole number"),
    ],
    ids=str,
)
def test_what_is_no_number_is_refused_with_the_name_of_the_parameter(given: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidParameter, match=says):
        fs.fit(people(50, 0), SCHEMA, **{"epsilon": 1, "delta": 1e-6, "method": "oneshot", **given})  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    """As loops over np.linspace and the largest count of a column's values give them."""
    frame = people(300, 0).assign(who=np.arange(300) // 2)
    told: dict[str, Any] = {"method": "oneshot", "person": "who", "seed": 3}
    made = fs.fit(
        frame,
        SCHEMA,
        epsilon=np.float64(1),
        delta=np.float32(1e-6),  # type: ignore[arg-type]
        rows_per_person=np.int64(2),  # type: ignore[arg-type]
        **{**told, "seed": np.int64(3)},
    )
    again = fs.fit(frame, SCHEMA, epsilon=1, delta=float(np.float32(1e-6)), rows_per_person=2, **told)
    assert str(made) == str(again)
    pd.testing.assert_frame_equal(made.sample(50, seed=0), again.sample(50, seed=0))
    unit = fs.Unit(rows=np.int64(2))  # type: ignore[arg-type]
    assert type(unit.rows) is int
    for rows in (0, -1, 2**21, 1.5):
        with pytest.raises(InvalidParameter, match="whole number"):
            fs.Unit(rows=rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [None, 3, np.zeros((3, 3)), {"a": [1, 2]}], ids=["None", "int", "array", "dict"])
def test_rows_that_are_no_table_are_refused_by_the_name_of_their_site(rows: object) -> None:
    with pytest.raises(SchemaError, match="table of site 'north' is of the type"):
        fs.fit({"north": rows}, SCHEMA, epsilon=1, delta=1e-6, method="oneshot")  # type: ignore[dict-item]


def test_no_site_takes_the_place_of_another() -> None:
    frame = people(60, 0)
    with pytest.raises(InvalidParameter, match="0 is not a valid site name"):
        fs.fit({0: frame, "site-000": frame}, SCHEMA, epsilon=1, delta=1e-6, method="oneshot")  # type: ignore[dict-item]


def test_a_path_is_no_schema_and_one_name_is_one_column(tmp_path: Path) -> None:
    frame = people(60, 0)
    with pytest.raises(SchemaError, match=r"schema is of the type str; Schema\.load"):
        fs.fit(frame, "schema.toml", epsilon=1, delta=1e-6)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="several columns 'sex'"):
        fs.fit(pd.concat([frame, frame], axis=1), SCHEMA, epsilon=1, delta=1e-6, method="oneshot")


@pytest.mark.parametrize(
    ("epsilon", "delta", "says"),
    [
        (1, 0.999999, "delta = 0.999999 is above 0.01"),
        (1, 0.01, "delta = 0.01 is above 1 / 300, one over the 300 rows"),
        (1000, 1e-6, "excludes hardly any"),
    ],
)
def test_a_guarantee_that_says_little_is_not_passed_over(
    epsilon: float, delta: float, says: str, tmp_path: Path
) -> None:
    """The caller is warned, and so is whoever gets the model."""
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "method": "oneshot", "public_sizes": True}
    with pytest.warns(UserWarning, match=says):
        made = fs.fit(people(300, 0), SCHEMA, weak_delta=True, **asked)
    made.save(tmp_path / "model.fedsynth")
    again = fs.load(tmp_path / "model.fedsynth").statement
    assert again is not None
    assert says in again.text
    assert again.headline.startswith(f"({epsilon}, {delta!r})-differentially private")
    if delta > 0.01:
        with pytest.raises(InvalidParameter, match=r"delta = 0\.999999 is above 0\.01: .*weak_delta=True"):
            fs.fit(people(300, 0), SCHEMA, **asked)
        with pytest.raises(InvalidParameter, match="weak_delta=True"):
            fs.federate([people(300, 0)], SCHEMA, fs.Budget(epsilon, delta), trust=LocalNoise())


def test_a_limit_on_the_rows_of_persons_needs_the_persons() -> None:
    """rows_per_person = 3 dropped no row, and the statement spoke of each person with up to 3 rows."""
    frame = people(300, 0)
    for limit in ({"rows_per_person": 3}, {"sites_per_person": 2}):
        with pytest.raises(InvalidParameter, match=r"limit nobody unless a column tells persons apart: .*--person"):
            fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", **limit)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match="limit nobody"):
            fs.fit(encode(SCHEMA, frame), SCHEMA, epsilon=1, delta=1e-6, method="oneshot", **limit)  # type: ignore[arg-type]
    named = frame.assign(who=np.arange(300) // 3)
    made = fs.fit(named, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", rows_per_person=3, person="who")
    assert made.statement is not None
    assert "each person with up to 3 rows at one site" in made.statement.sentence
    # Tables whose persons have no more are as good.
    table = replace(encode(SCHEMA, frame), persons=identify(named["who"]))
    assert fs.fit(table, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", rows_per_person=3).statement is not None
    with pytest.raises(InvalidParameter, match="more than 2 rows"):
        fs.fit(table, SCHEMA, epsilon=1, delta=1e-6, method="oneshot", rows_per_person=2)


def test_rows_that_are_given_twice_are_warned_of() -> None:
    frame = people(300, 0)
    with pytest.warns(UserWarning, match="sites north, south have the same rows, 300 each"):
        fs.federate(
            {"north": frame, "south": frame, "east": people(300, 1)}, SCHEMA, fs.Budget(1, 1e-6), trust=LocalNoise()
        )
    with pytest.warns(UserWarning, match="sites north, south have the same rows"):
        fs.fit({"north": frame, "south": frame.copy()}, SCHEMA, epsilon=1, delta=1e-6, method="oneshot")
    few = people(3, 0)
    with pytest.warns(UserWarning, match="have the same rows, 3 each"):
        fs.federate([few, few], SCHEMA, fs.Budget(1, 1e-6), trust=LocalNoise())
    fs.federate([few, few.copy()], SCHEMA, fs.Budget(1, 1e-6), trust=LocalNoise())  # may be chance


def test_hold_out_rows_that_were_fitted_to_are_warned_of() -> None:
    pytest.importorskip("sklearn")
    schema = fs.Schema((*SCHEMA.columns, fs.Numeric("weight", 0, 200, bins=4)))
    frame = people(600, 0).assign(weight=np.linspace(40, 120, 600))
    made = fs.fit(frame, schema, epsilon=1, delta=1e-6, method="oneshot")
    asked: dict[str, Any] = {"metrics": ["column-similarity"]}
    with pytest.raises(InvalidParameter, match="holdout is the frame that was fitted to"):
        fs.evaluate(made, train=frame, holdout=frame, **asked)
    with pytest.raises(InvalidParameter, match="holdout is the frame"):
        fs.evaluate(made, train={"north": frame[:50], "south": frame}, holdout=frame, **asked)
    with pytest.warns(UserWarning, match="200 of the 200 hold-out rows are among the real rows"):
        fs.evaluate(made, train=frame, holdout=frame.sample(200, random_state=0), **asked)
    fs.evaluate(made, train=frame, holdout=people(200, 7).assign(weight=np.linspace(50, 90, 200)), **asked)


def test_hold_out_rows_of_few_values_may_be_among_the_real_rows_by_chance() -> None:
    pytest.importorskip("sklearn")
    frame = people(600, 0).assign(age=30)
    made = fs.fit(frame, SCHEMA, epsilon=1, delta=1e-6, method="oneshot")
    fs.evaluate(made, train=frame, holdout=people(200, 1).assign(age=30), metrics=["column-similarity"])


def test_notebooks_show_a_schema_a_statement_and_plots(tmp_path):
    hospitals = [patients(500, hospital) for hospital in range(3)]
    agreed = patients_schema()
    made = fs.fit(hospitals, agreed, epsilon=2.0, delta=1e-6, method="oneshot", seed=1)
    shown = agreed._repr_html_()
    assert "<td>ward</td><td>categorical</td><td>surgery, medicine, cardiology, maternity</td>" in shown
    assert "<td>age</td><td>numeric</td><td>0 to 110</td>" in shown
    assert "never ward = maternity with sex = m" in shown
    assert made.statement is not None
    assert escape(made.statement.headline) in made.statement._repr_html_()
    made.plot("age", 300, seed=1).save(tmp_path / "age.svg")
    drawn = (tmp_path / "age.svg").read_text()
    assert "age: synthetic rows<" in drawn
    assert "real" not in re.sub("<style>.*</style>", "", drawn).replace('class="real"', "")
    found = fs.evaluate(train=pd.concat(hospitals), synthetic=made.sample(1000, seed=1), schema=agreed)
    both = found.plot("bill")
    assert "synthetic rows (blue) beside real ones (grey)" in both._repr_svg_()
    assert "real against synthetic" in repr(both)
    for plotted in (made, found):
        with pytest.raises(SchemaError, match=r"no column 'agee' to plot; did you mean 'age'\?"):
            plotted.plot("agee")


def test_a_trust_by_its_name_and_a_folder_in_place_of_a_model(tmp_path):
    hospitals, budget = [patients(300, 1), patients(300, 2)], fs.Budget(1, 1e-6)
    federation = fs.federate(hospitals, patients_schema(), budget, trust="local")
    assert isinstance(federation.trust, LocalNoise)
    with pytest.raises(Unsupported, match="no trust model named 'lokal'; did you mean 'local'"):
        fs.federate(hospitals, patients_schema(), budget, trust="lokal")
    with pytest.raises(FedsynthError, match="is a folder; name the model's file in it"):
        fs.load(tmp_path)
