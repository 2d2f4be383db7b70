"""The description of a pack in Croissant 1.1 (https://docs.mlcommons.org/croissant), with its RAI vocabulary."""

from __future__ import annotations

from typing import Any

from fedsynth.errors import number_of
from fedsynth.publish.source import MEDIA_TYPES, PackSource
from fedsynth.schema.columns import Categorical, Column, Numeric
from fedsynth.schema.forms import Identifier

_CROISSANT = "http://mlcommons.org/croissant/"
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform", "arrayShape", "isArray"),
    *("containedIn", "value"),
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": _CROISSANT,
    "rai": f"{_CROISSANT}RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}


def croissant(source: PackSource) -> dict[str, Any]:
    """Return the description of a pack as JSON values; its files are named relative to the pack's folder."""
    details, stated = source.details, source.statement
    publisher = {"@type": "sc:Organization", "name": details.publisher}
    real = f"{source.card.records:,.0f} real rows at {number_of(len(source.sites), 'site')}"
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": details.title,
        "description": source.description,
        "conformsTo": [f"{_CROISSANT}1.1", f"{_CROISSANT}RAI/1.0"],
        "license": details.licence_url,
        "url": details.url or "./",
        "version": "1.0.0",
        "datePublished": details.date,
        "citeAs": details.citation,
        "creator": publisher,
        "publisher": publisher,
        "keywords": ["synthetic data", "differential privacy", "federated"],
        "isLiveDataset": False,
        "rai:hasSyntheticData": True,
        "rai:dataCollection": f"Every row was drawn from a model that was fitted to noisy answers on some {real}.",
        "rai:dataCollectionType": "Synthetic",
        "rai:dataLimitations": [
            *(source.card.limitations.smallest if source.card.limitations else ()),
            "Programs that take these rows for real ones compute standard errors that are too small.",
            "No statement about one person follows from these rows.",
        ],
        "rai:dataUseCases": details.purpose or "not stated",
        "rai:personalSensitiveInformation": " ".join([stated.sentence, *stated.conditions]),
        "distribution": [_file(source, name) for name in source.table],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "rows",
                "name": "rows",
                "description": f"{number_of(source.rows, 'synthetic row')}.",
                "field": [_field(column, at) for at, column in enumerate(source.columns)],
            }
        ],
    }


def _file(source: PackSource, name: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": f"data/{name}",
        "contentSize": f"{len(source.table[name])} B",
        "encodingFormat": MEDIA_TYPES[name].replace("vnd.apache.", "x-"),  # as the specification has it
        "sha256": source.digest(name),
    }


def _field(column: Column | Identifier, at: int) -> dict[str, Any]:
    """Return a field, which the table in Parquet holds: its texts are as they are, without marks for spreadsheets."""
    return {
        "@type": "cr:Field",
        "@id": f"rows/{at}",
        "name": column.name,
        "description": f"A column of the kind {column.kind}; data/codebook.csv describes it.",
        "dataType": _type(column),
        "source": {"fileObject": {"@id": "synthetic.parquet"}, "extract": {"column": column.name}},
    }


def _type(column: Column | Identifier) -> str:
    if isinstance(column, Identifier):
        return "sc:Integer" if column.form == "sequence" else "sc:Text"
    if isinstance(column, Categorical):
        return "sc:Text" if isinstance(column.labels[0], str) else "sc:Integer"
    if isinstance(column, Numeric):
        return "sc:Integer" if column.per_unit == 1 else "sc:Float"
    return "sc:DateTime" if column.is_time else "sc:Boolean"
