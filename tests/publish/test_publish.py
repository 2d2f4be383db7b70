"""A pack: made of a run's folder alone, verified by a stranger, and without anything that must stay behind."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec import structs
from tests import telco
from tests.command import invoke
from tests.publish.world import DETAILS, PLANTED, content, simulate

from fedsynth.data.spreadsheet import is_formula
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.publish.details import PackDetails
from fedsynth.publish.manifest import Manifest
from fedsynth.publish.pack import obstacles, publish_run
from fedsynth.publish.verify import verify
from fedsynth.runs.folder import RunFolder

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("simulated"))


@pytest.fixture(scope="module")
def pack(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_run(run, tmp_path_factory.mktemp("published") / "pack", DETAILS).pack


def test_a_pack_has_its_parts_and_verifies(pack):
    names = set(content(pack))
    assert {
        *("data/synthetic.csv", "data/synthetic.parquet", "data/codebook.csv", "data/codebook.json", "read.R"),
        *("about.md", "statement.html", "data-sheet.md", "LICENCE.txt", "README.md", "manifest.json"),
        *("croissant.json", "dcat.ttl", "registry.yaml", "agreed/plan.toml", "agreed/roster.toml"),
        *("proof/transcript", "proof/ledger.json", "proof/run.toml", "proof/schema.toml", "proof/sheet.txt"),
    } == {name for name in names if not name.startswith("answers/")}
    tables = {name.rpartition("/")[2] for name in names if name.startswith("answers/")}
    index = pd.read_csv(pack / "answers" / "tables" / "index.csv")
    assert tables == {"index.csv", *index["file"]}
    found = verify(pack)
    assert not found.problems
    assert found.signed == {}
    assert "UNSIGNED" in found.text
    result = invoke(["verify", pack])
    assert result.exit_code == 0, result.output
    assert "Proof sheet of run" in result.output
    said = json.loads(invoke(["verify", pack, "--json"]).output)
    assert (said["verified"], said["proved"], said["files"]) == (True, True, len(names) - 1)


def test_a_noisy_table_that_the_run_did_not_release_is_found(pack, tmp_path):
    """Whoever makes an unsigned pack anew cannot change what the transcript says."""
    copy = shutil.copytree(pack, tmp_path / "copy")
    table = copy / "answers" / "tables" / "0002.csv"
    table.write_text(table.read_text().replace("1", "2"))
    listed = {name: data for name, data in content(copy).items() if name != "manifest.json"}
    (copy / "manifest.json").write_bytes(Manifest.of(listed, Manifest.load(pack).run, "").to_json())
    assert verify(copy).problems == ("answers/tables/0002.csv is not what the run released",)


def test_the_same_folder_gives_the_same_bytes_without_any_row(run, pack, tmp_path):
    """Neither the rows nor what is private is needed, nor is anything asked again."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("private"))
    again = publish_run(copy, tmp_path / "again", {})
    assert content(again.pack) == content(pack)
    done = invoke(["publish", run, "--to", tmp_path / "third"])
    assert done.exit_code == 0, done.output
    assert content(tmp_path / "third") == content(pack)


def test_nothing_that_is_planted_or_private_is_in_a_pack(run, pack):
    kept = [file.read_bytes().strip() for file in (run / "private").iterdir()]
    assert kept
    for name, held in content(pack).items():
        for planted in PLANTED:
            assert planted.encode() not in held, name
        assert not any(secret in held for secret in kept), name
        assert b"rows_digest" not in held, name
        assert b"split_seed" not in held, name


def test_the_table_is_that_of_the_run_and_safe_in_spreadsheets(run, pack):
    cells = pd.read_csv(pack / "data" / "synthetic.csv", dtype=str, keep_default_na=False)
    texts = [*cells.columns, *(str(value) for name in cells for value in cells[name].unique())]
    assert not [text for text in texts if is_formula(text)]
    assert "'=plan" in cells.columns
    assert set(cells["'=plan"]) <= {"'=1+1", "basic", "'-none-", "other"}
    made = pd.read_csv(run / "synthetic.csv", dtype=str, keep_default_na=False)
    assert (cells["'=plan"].str.removeprefix("'") == made["=plan"]).all()
    typed = pd.read_parquet(pack / "data" / "synthetic.parquet")
    assert list(typed.columns) == list(made.columns)
    assert (typed["=plan"].astype(str) == made["=plan"]).all()
    assert np.allclose(typed["bill"], made["bill"].astype(float))
    assert pd.api.types.is_datetime64_any_dtype(typed["came"])
    book = pd.read_csv(pack / "data" / "codebook.csv", dtype=str, keep_default_na=False).set_index("column")
    assert book.loc["'=plan", "values"] == "'=1+1 | basic | -none- | other"
    assert list(book.loc["age", ["kind", "low", "high", "may be missing"]]) == ["numeric", "0", "110", "yes"]
    assert list(book.loc["came", ["unit", "high"]]) == ["D", "2025-01-01"]


def test_about_says_tails_what_was_merged_and_how_to_cite(pack):
    text = (pack / "about.md").read_text()
    for heading in ("What is proved", "How far counts can be trusted", "Which relations", "Tails", "What was merged"):
        assert f"## {heading}" in text
    assert "smallest trustworthy groups" in text
    assert "values beyond 0 and 110 were counted at the nearer of them; the largest 1 %" in text
    assert "values that the codebook does not list were counted as other" in text
    assert "Health \\<Office\\>" in text.partition("## How to cite it")[2]


def test_the_statement_for_lawyers_is_two_pages_without_formulas(pack):
    page = (pack / "statement.html").read_text()
    assert "Health &lt;Office&gt;" in page
    assert "Whoever ran this saw all rows" in page
    assert "is right in more than" in page
    assert not [sign for sign in ("<script", "http-equiv", "∑", "≤", "√", "e^", "src=") if sign in page]
    assert len(page.partition("<body>")[2].split()) < 1100


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; make browser does it")
def test_the_statement_prints_on_two_pages(pack, tmp_path):
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    words += [f"--print-to-pdf={tmp_path / 'page.pdf'}", str(pack / "statement.html")]
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=120)
    (pages,) = {int(count) for count in re.findall(rb"/Count (\d+)", (tmp_path / "page.pdf").read_bytes())}
    assert 1 <= pages <= 2


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--seed", 1], "its noise comes from a seed"),
        (["--partition", "capped-label-skew:1:1"], "depends on other rows"),
    ],
    ids=["seed", "split"],
)
def test_what_must_not_be_published_is_refused(tmp_path, more, says):
    run = simulate(tmp_path, *more)
    result = invoke(["publish", run, "--to", tmp_path / "pack", "--title", "T", "--publisher", "P", "--licence", "MIT"])
    assert result.exit_code == 8
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "pack").exists()
    assert not (run / "publication").exists()


def changed(run: Path, folder: Path, file: str, change: Any) -> RunFolder:
    shutil.copytree(run, folder)
    (folder / file).write_text(change((folder / file).read_text()))
    return RunFolder(folder)


def stated(**facts: Any) -> Any:
    def change(text: str) -> str:
        ledger = json.loads(text)
        ledger["statement"] |= facts
        return json.dumps(ledger)

    return change


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("ledger.json", stated(private=False), "has no guarantee"),
        ("ledger.json", stated(seeded=True), "comes from a seed"),
        ("ledger.json", stated(schema_draft=True), "is a draft"),
        ("ledger.json", stated(looks_at_other_rows=True), "depends on other rows"),
        ("ledger.json", stated(foreign=[{"place": "a.b:C", "accepted": False}]), "rests on a.b:C"),
        ("schema.toml", lambda text: text.replace("\n[[column]]", "\ndraft = true\n[[column]]", 1), "is a draft"),
        ("run.toml", lambda text: text.replace('split = "row by row"', 'split = "by other rows"'), "other rows"),
        ("run.toml", lambda text: text.replace('split = "row by row"\n', ""), "other rows"),
        ("run.toml", lambda text: text.replace("epsilon = 2.0", "epsilon = 2.0\nseed = 3"), "from a seed"),
    ],
)
def test_each_obstacle_is_found_in_the_file_that_has_it(run, tmp_path, file, change, says):
    assert obstacles(RunFolder(run)) == []
    (found,) = obstacles(changed(run, tmp_path / "run", file, change))
    assert says in found


def test_records_that_contradict_each_other_are_not_published(run, tmp_path):
    def halved(text: str) -> str:
        ledger = json.loads(text)
        ledger["entries"][0]["cost"]["rho"] /= 2
        return json.dumps(ledger)

    folder = changed(run, tmp_path / "run", "ledger.json", halved).path
    with pytest.raises(FedsynthError, match="its records contradict each other"):
        publish_run(folder, tmp_path / "pack", DETAILS)
    result = invoke(["verify", folder])
    assert result.exit_code == 8
    assert "PROBLEM: step 0 (sum counts): it costs" in result.output


def test_licence_title_and_publisher_are_asked_for(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("publication"))
    result = invoke(["publish", copy, "--to", tmp_path / "pack", "--title", "Stays"])
    assert result.exit_code == 2
    assert "--licence CC-BY-4.0" in " ".join(result.output.split())
    assert "--publisher" in result.output
    assert "--title" not in result.output


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("licence", "no such licence", "spdx.org"),
        ("title", " ", "--title is empty"),
        ("url", "example.org", "https://"),
        ("url", "https://example.org/>.<a>", "https://"),
        ("licence", "https://example.org/'x", "spdx.org"),
        ("publisher", "P\n# Q", "on one line"),
    ],
)
def test_details_are_checked(field, value, says):
    with pytest.raises(InvalidParameter, match=says):
        PackDetails(**{**DETAILS, field: value})


def test_licences_have_addresses():
    def address(licence: str) -> str:
        return structs.replace(PackDetails(**DETAILS), licence=licence).licence_url

    assert address("CC-BY-4.0") == "https://creativecommons.org/licenses/by/4.0/"
    assert address("CC-BY-NC-SA-4.0") == "https://creativecommons.org/licenses/by-nc-sa/4.0/"
    assert address("CC0-1.0") == "https://creativecommons.org/publicdomain/zero/1.0/"
    assert address("MIT") == "https://spdx.org/licenses/MIT.html"
    assert address("https://example.org/terms") == "https://example.org/terms"


def test_a_folder_that_is_no_pack_is_never_replaced(run, pack, tmp_path):
    (tmp_path / "mine").mkdir()
    for force in (False, True):
        with pytest.raises(FedsynthError, match="exists"):
            publish_run(run, tmp_path / "mine", {}, force=force)
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    (copy / "more.txt").write_text("")
    with pytest.raises(FedsynthError, match="--force"):
        publish_run(run, copy, {})
    publish_run(run, copy, {}, force=True)
    assert content(copy) == content(pack)


# ---------------------------------------------------------------------------------------------------------------------
# What a stranger finds


@pytest.mark.parametrize("name", ["about.md", "data/synthetic.csv", "proof/transcript", "proof/ledger.json", "read.R"])
def test_one_changed_byte_is_named(pack, tmp_path, name):
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    held = bytearray((copy / name).read_bytes())
    held[len(held) // 2] ^= 1
    (copy / name).write_bytes(held)
    result = invoke(["verify", copy])
    assert result.exit_code == 8
    assert f"PROBLEM: {name} was changed" in " ".join(result.output.split())
    assert any(problem.startswith(f"{name} was changed") for problem in verify(copy).problems)


def test_missing_and_added_files_are_named(pack, tmp_path):
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    (copy / "LICENCE.txt").unlink()
    (copy / "data" / "more.csv").write_text("a\n")
    (copy / "read.R").unlink()
    (copy / "read.R").symlink_to(pack / "read.R")
    assert set(verify(copy).problems) == {
        "LICENCE.txt is missing",
        "read.R is missing",
        "data/more.csv was added: the manifest does not list it",
    }


@pytest.mark.parametrize("where", ["data", "more"])
def test_links_to_folders_are_no_files_of_a_pack(pack, tmp_path, where):
    """What lies behind a link can change after it was verified."""
    copy, elsewhere = tmp_path / "pack", tmp_path / "elsewhere"
    shutil.copytree(pack, copy)
    shutil.copytree(pack / "data", elsewhere)
    shutil.rmtree(copy / where, ignore_errors=True)
    (copy / where).symlink_to(elsewhere)
    problems = verify(copy).problems
    assert f"{where} was added: the manifest does not list it" in problems
    assert ("data/synthetic.csv is missing" in problems) == (where == "data")


@pytest.mark.parametrize("change", ["twice", "order"])
def test_a_manifest_lists_each_file_once_and_in_order(pack, tmp_path, change):
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    first = {**manifest["files"][0], "sha256": "0" * 64}
    manifest["files"] = [first, *manifest["files"]] if change == "twice" else manifest["files"][::-1]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert any("twice, or its files out of order" in problem for problem in verify(copy).problems)


@pytest.mark.parametrize(
    ("said", "lie"),
    [
        ("rows_per_person = 1", "rows_per_person = 5"),
        ("public_sizes = false", "public_sizes = true"),
    ],
)
def test_settings_that_were_never_agreed_are_named(run, tmp_path, said, lie):
    """A publisher who makes the manifest anew cannot claim another guarantee, or questions that nobody was asked."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    text = (copy / "run.toml").read_text()
    assert said in text
    (copy / "run.toml").write_text(text.replace(said, lie, 1))
    assert any("what was agreed says" in problem for problem in verify(copy).problems)


@pytest.mark.parametrize("path", ["../about.md", "/etc/passwd", "a//b", ".hidden", "data/../about.md"])
def test_a_manifest_names_files_of_its_pack_alone(pack, tmp_path, path):
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"][0]["path"] = path
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FedsynthError, match="not the manifest of a pack"):
        verify(copy)


def test_what_is_neither_pack_nor_run_is_said_so(tmp_path):
    with pytest.raises(FedsynthError, match=r"holds no manifest\.json and no run\.toml"):
        verify(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(FedsynthError, match="no known format number"):
        Manifest.load(tmp_path)


def test_a_run_in_parquet_has_the_same_pack_but_for_its_draws(tmp_path):
    made = publish_run(simulate(tmp_path, "--format", "parquet"), tmp_path / "pack", DETAILS)
    assert not verify(made.pack).problems
    typed = pd.read_parquet(made.pack / "data" / "synthetic.parquet")
    cells = pd.read_csv(made.pack / "data" / "synthetic.csv")
    assert len(typed) == len(cells)
    assert cells["'=plan"].str.startswith("'").any()


@pytest.mark.parametrize("trust", ["local", "trusted"])
def test_the_pack_of_each_trust_verifies(tmp_path, trust):
    made = publish_run(simulate(tmp_path, "--trust", trust), tmp_path / "pack", DETAILS)
    found = verify(made.pack)
    assert not found.problems
    assert found.sheet is not None
    assert found.sheet.trust == trust
    assert not [name for name, held in content(made.pack).items() for planted in PLANTED if planted.encode() in held]


def test_columns_that_depend_on_others_are_published_and_described(tmp_path):
    data, schema = telco.write(tmp_path, 800, 0)
    words = ["simulate", "--data", data, "--schema", schema, "--sites", 2, "--epsilon", 2, "--delta", "1e-6"]
    done = invoke([*words, "--method", "oneshot", "--out", tmp_path / "run"])
    assert done.exit_code == 0, done.output
    made = publish_run(tmp_path / "run", tmp_path / "pack", DETAILS)
    assert not verify(made.pack).problems
    book = json.loads((made.pack / "data" / "codebook.json").read_text())
    assert [column["name"] for column in book["columns"]] == [column.name for column in telco.SCHEMA.columns]
    kinds = {column["name"]: column for column in book["columns"]}
    assert kinds["customer"] == {"name": "customer", "kind": "identifier", "form": "C-######", "missing": False}
    assert any("stored" in column for column in book["columns"])
    assert telco.broken(pd.read_parquet(made.pack / "data" / "synthetic.parquet")) == {}
