"""``fedsynth simulate --site``: each site's own export, in the form that its source file declares."""

from __future__ import annotations

import json

import pytest
from tests.command import invoke

from fedsynth.runs.job import Job
from fedsynth.schema import Categorical, Numeric, Schema

BUDGET = ("--epsilon", 1, "--delta", "1e-6", "--seed", 1)
NORTH = """
data = "north.csv"
csv = { encoding = "cp1252", separator = ";" }
decimal = ","
[column.height]
from = "Größe (m)"
factor = 100
[column.sex]
from = "Geschlecht"
recode = { W = "f", M = "m" }
"""


@pytest.fixture
def two_sites(tmp_path):
    rows = "".join(f"{at};1,{50 + at % 50};{'WM'[at % 2]}\n" for at in range(300))
    (tmp_path / "north.csv").write_bytes(f"ID;Größe (m);Geschlecht\n{rows}Summe;x;\n".encode("cp1252"))
    (tmp_path / "north.toml").write_text(NORTH, encoding="utf-8")
    rows = "".join(f"{at}\t{150 + at % 50}\t{'fm'[at % 2]}\n" for at in range(200))
    (tmp_path / "south.tsv").write_text(f"ID\theight\tsex\n{rows}")
    Schema((Numeric("height", 100, 220), Categorical("sex", ("f", "m")))).save(tmp_path / "agreed.toml")
    return tmp_path


def simulate(folder, *more):
    sites = ("--site", f"north={folder / 'north.toml'}", "--site", f"south={folder / 'south.tsv'}")
    return invoke(["simulate", *sites, "--schema", folder / "agreed.toml", *BUDGET, "--out", folder / "run", *more])


def test_each_site_has_its_own_file(two_sites, caplog):
    done = simulate(two_sites, "--holdout", 0.1)
    assert done.exit_code == 0, done.output
    assert "over 2 sites (north, south)" in " ".join(done.output.split())
    assert "'height': cells that are no numbers in the declared form" in caplog.text
    job = Job.load(two_sites / "run" / "run.toml")
    assert (set(job.site), job.sites, job.trust) == ({"north", "south"}, 2, "local")
    assert {
        entry
        for line in (two_sites / "run" / "ledger.json").read_text().split()
        for entry in ["north"]
        if entry in line
    }
    again = invoke(["simulate", "--config", two_sites / "run" / "run.toml", "--out", two_sites / "again"])
    assert again.exit_code == 0, again.output
    assert (two_sites / "run" / "synthetic.csv").read_text() == (two_sites / "again" / "synthetic.csv").read_text()


def test_the_report_of_a_run_finds_its_rows_again(two_sites):
    assert simulate(two_sites, "--holdout", 0.2).exit_code == 0
    (two_sites / "north.toml").write_text(NORTH.replace("100", "90"), encoding="utf-8")
    changed = invoke(["report", two_sites / "run"])
    assert (changed.exit_code, "no longer holds the rows" in " ".join(changed.output.split())) == (8, True)
    (two_sites / "north.toml").write_text(NORTH, encoding="utf-8")
    assert invoke(["report", two_sites / "run"]).exit_code == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data", "x.csv"], "data: for one table that is split"),
        (["--partition", "quantity:1"], "partition: for one table that is split"),
        (["--site", "North=x.csv"], "North"),
    ],
)
def test_what_cannot_stand_beside_it(two_sites, more, said):
    done = simulate(two_sites, *more)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_schema_is_needed_and_a_check_reads_the_source_file(two_sites):
    done = invoke(["simulate", "--site", f"a={two_sites / 'south.tsv'}", *BUDGET, "--out", two_sites / "run"])
    assert "--site needs --schema" in done.output
    checked = invoke(["schema", "check", two_sites / "north.toml", "--schema", two_sites / "agreed.toml", "--json"])
    report = json.loads(checked.output)
    assert (report["rows"], report["left_out"]) == (301, 1)  # the line of the sum, which skip does not name
