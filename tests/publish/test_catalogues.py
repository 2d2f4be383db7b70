"""Entries for catalogues, judged by the validators of those who keep these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.public_data import public_data
from tests.publish.world import DETAILS, simulate

from fedsynth.publish.pack import publish_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the validators themselves
REGISTRY = Path(__file__).parent / "registry" / "deployments-schema.yaml"
BASE = "https://example.org/stays/"


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return packs of one run: with all that may be told of it, and with what must be."""
    folder = tmp_path_factory.mktemp("catalogues")
    run = simulate(folder)
    short = {name: DETAILS[name] for name in ("title", "publisher", "licence")}
    packs = {"short": publish_run(run, folder / "short", short).pack}
    return packs | {"full": publish_run(run, folder / "full", DETAILS).pack}


@pytest.mark.parametrize("told", ["short", "full"])
def test_the_registry_takes_the_entry(packs, told):
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    entry = yaml.safe_load((packs[told] / "registry.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(entry, yaml.safe_load(REGISTRY.read_text(encoding="utf-8")))
    deployment = entry["deployment"]
    assert deployment["basic"]["name"] == DETAILS["title"]
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 2.0, "delta": 1e-6}
    assert deployment["deployment_model"]["model_name"] == "Central"  # one process had the rows of all sites
    assert deployment["basic"]["data_product_region"] == (DETAILS["region"] if told == "full" else "Not stated.")


@pytest.mark.parametrize("told", ["short", "full"])
def test_the_catalogue_entry_conforms_to_dcat_ap(packs, told):
    rdflib, pyshacl = pytest.importorskip("rdflib"), pytest.importorskip("pyshacl")
    graph = rdflib.Graph().parse(packs[told] / "dcat.ttl", format="turtle", publicID=BASE)
    shapes = rdflib.Graph().parse(public_data("dcat/shapes.ttl"), format="turtle")
    conforms, _, said = pyshacl.validate(graph, shacl_graph=shapes)
    assert conforms, said
    dcat, dct = (rdflib.Namespace(f"http://{name}") for name in ("www.w3.org/ns/dcat#", "purl.org/dc/terms/"))
    (table,) = graph.subjects(rdflib.RDF.type, dcat.Dataset)
    assert str(table) == f"{BASE}#table"
    assert [str(title) for title in graph.objects(table, dct.title)] == [DETAILS["title"]]
    urls = {str(url) for url in graph.objects(None, dcat.downloadURL)}
    assert urls == {f"{BASE}data/synthetic.csv", f"{BASE}data/synthetic.parquet"}


@pytest.mark.parametrize("told", ["short", "full"])
def test_croissant_reads_the_table(packs, told):
    croissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed; make setup does it")
    dataset = croissant.Dataset(packs[told] / "croissant.json")
    assert not dataset.metadata.ctx.issues.errors
    records: list[dict[str, Any]] = list(dataset.records("rows"))
    book = json.loads((packs[told] / "data" / "codebook.json").read_text(encoding="utf-8"))
    assert len(records) == book["rows"]
    assert set(records[0]) == {f"rows/{at}" for at in range(len(book["columns"]))}
    assert {record["rows/2"] for record in records} <= {b"=1+1", b"basic", b"-none-", b"other"}
    content = json.loads((packs[told] / "croissant.json").read_text(encoding="utf-8"))
    assert content["conformsTo"][0] == "http://mlcommons.org/croissant/1.1"
    assert content["rai:hasSyntheticData"] is True
