"""The entry of a pack for data catalogues, in DCAT-AP 3.0 (Turtle)."""

from __future__ import annotations

import json

from fedsynth.publish.source import MEDIA_TYPES, PackSource

_PREFIXES = {
    "dcat": "http://www.w3.org/ns/dcat#",
    "dct": "http://purl.org/dc/terms/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "spdx": "http://spdx.org/rdf/terms#",
    "vcard": "http://www.w3.org/2006/vcard/ns#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
_MEDIA = "https://www.iana.org/assignments/media-types/"


def catalogue_entry(source: PackSource) -> str:
    """Return the entry; its addresses are relative to that of the pack, if none was told."""
    details, base = source.details, source.details.url.rstrip("/") + "/" if source.details.url else ""
    files = list(source.table)
    lines = [f"@prefix {name}: <{address}> ." for name, address in _PREFIXES.items()]
    lines += [
        "",
        f"<{base}#table> a dcat:Dataset ;",
        f"  dct:title {_text(details.title)} ;",
        f"  dct:description {_text(source.description)} ;",
        f"  dct:publisher [ a foaf:Agent ; foaf:name {_text(details.publisher)} ] ;",
        f'  dct:issued "{details.date}"^^xsd:date ;',
        f"  dct:identifier {json.dumps(source.sheet.run)} ;",
        '  dcat:keyword "synthetic data"@en, "differential privacy"@en ;',
        f"  dct:provenance [ a dct:ProvenanceStatement ; rdfs:label {_text(source.statement.text)} ] ;",
    ]
    if details.region:
        lines.append(f"  dct:spatial [ a dct:Location ; rdfs:label {_text(details.region)} ] ;")
    if details.contact:
        kind = "hasURL" if "://" in details.contact else "hasEmail"
        address = details.contact if kind == "hasURL" else f"mailto:{details.contact}"
        name = _text(details.publisher)
        lines.append(f"  dcat:contactPoint [ a vcard:Kind ; vcard:fn {name} ; vcard:{kind} <{_address(address)}> ] ;")
    if base:
        lines.append(f"  dcat:landingPage <{details.url}> ;")
    lines.append(f"  dcat:distribution {', '.join(f'<{base}#{name}>' for name in files)} .")
    for name in files:
        lines += [
            "",
            f"<{base}#{name}> a dcat:Distribution ;",
            f"  dct:title {_text(name)} ;",
            f"  dcat:accessURL <{base or './'}> ;",
            f"  dcat:downloadURL <{base}data/{name}> ;",
            f"  dcat:mediaType <{_MEDIA}{MEDIA_TYPES[name]}> ;",
            f'  dcat:byteSize "{len(source.table[name])}"^^xsd:decimal ;',
            f"  dct:license <{details.licence_url}> ;",
            "  spdx:checksum [ a spdx:Checksum ; spdx:algorithm spdx:checksumAlgorithm_sha256 ;",
            f'    spdx:checksumValue "{source.digest(name)}"^^xsd:hexBinary ] .',
        ]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Return a literal of Turtle, whose strings have the escapes of JSON's."""
    return f"{json.dumps(text, ensure_ascii=False)}@en"


def _address(text: str) -> str:
    """Return an address without the characters that end one in Turtle."""
    return "".join(letter for letter in text if letter not in '<>"{}|^`\\' and letter > " ")
