"""The pages of a pack for people: the statement for lawyers (HTML), the data sheet and the list of files (Markdown)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import fedsynth
from fedsynth.errors import number_of
from fedsynth.models.card import certainty_text, markdown
from fedsynth.publish.source import PackSource
from fedsynth.trusts import TRUSTS

_STYLE = """
@page { size: A4; margin: 16mm; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #1b2026; background: #fff;
  font: 10.5pt/1.4 Georgia, "Times New Roman", serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5em; line-height: 1.2; margin: 0 0 .2em; }
h2 { font-size: 1.1em; margin: 1.1em 0 .3em; }
p, ul, table { margin: 0 0 .6em; }
li { margin-bottom: .2em; }
table { border-collapse: collapse; }
th, td { border: 1px solid #9aa3ad; padding: .25em .5em; text-align: left; vertical-align: top; }
.guarantee { border-left: .3em solid #0a4a9e; padding-left: .8em; }
.small, small { font-size: .85em; }
@media print { body { margin: 0; padding: 0; max-width: none; font-size: 9.5pt; } }
"""
_NOT_GUARANTEED = (
    "What is true of many. If most smokers in the real records have a disease, the table shows it, and anybody may "
    "conclude something about a smoker, whether that person's records were used or not.",
    "Accuracy. Counts are inexact on purpose: no decision about a single person may rest on the table.",
    "The list of columns and of their possible values, which was agreed on as public before any record was read.",
    "What staff of an organisation that holds real records can see there.",
)
_WORDS = (
    ("singling out", "find a record that belongs to one person", "the table would look about the same without it"),
    ("linkability", "join two records of one person", "the same: neither record can be told from its absence"),
    ("inference", "conclude an attribute of a person", "bounded as far as it follows from that person's own records"),
)


def statement_page(source: PackSource) -> str:
    """Return the statement for lawyers: at most two printed pages without formulas, one file without scripts."""
    details, stated, card = source.details, source.statement, source.card
    rows, columns = f"{source.rows:,} rows", number_of(len(source.columns), "column")
    words = "".join(
        f"<tr><th scope='row'>{word}</th><td>{tries}</td><td>{bound}</td></tr>" for word, tries, bound in _WORDS
    )
    confirmed = ", ".join(source.sheet.confirmed)
    body = [
        f"<h1>{escape(details.title)}</h1>",
        f"<p class='small'>Statement on privacy. {escape(details.publisher)}, {details.date}. "
        f"Licence: <a href='{escape(details.licence_url, quote=True)}'>{escape(details.licence)}</a>. "
        f"Run {escape(source.sheet.run)}.</p>",
        _section(
            "What is published",
            f"A table of {rows} and {columns}. Each row is made up; none is copied from the record of a person. A "
            f"program drew them from a model of inexact counts over about {card.records:,.0f} real records.",
        ),
        _section("Whose records, and who saw them", _who(source)),
        "<h2>What is guaranteed</h2>",
        f"<p class='guarantee'>{escape(certainty_text(card.certainty, card.unknown))}</p>",
        "<p>This holds for every person, however unusual, and for every method of attack, also for those that are yet "
        "to be invented. The technical form, for experts to check:</p>",
        f"<p class='small'>{escape(stated.sentence)}</p>",
        "<h2>What is not guaranteed</h2>",
        _list(_NOT_GUARANTEED),
        "<h2>Conditions and assumptions</h2>",
        f"<div class='small'>{_list(stated.conditions)}</div>",
        "<h2>In the words of European guidance</h2>",
        "<table><thead><tr><th scope='col'>word</th><th scope='col'>what an attacker tries</th>"
        f"<th scope='col'>what bounds it here</th></tr></thead><tbody>{words}</tbody></table>",
        _section(
            "How this can be checked",
            "The folder of this page has every question that was asked, and how much noise each answer had. "
            "Whoever has fedsynth recomputes the guarantee from them without a network, by the command fedsynth "
            f"verify. When this page was made, that found: {source.sheet.verdict} "
            + (f"Signed accounts of {confirmed} confirm that nothing else was asked there." if confirmed else ""),
        ),
        "<p class='small'>A program made this page from the records of the run. Whether the table counts as anonymous "
        "under a law is for its readers to decide.</p>",
    ]
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(details.title)}"
    return f"<!doctype html>\n<html lang='en'><head>{head}</title><style>{_STYLE}</style></head>\n<body>\n" + (
        "\n".join(body) + "\n</body></html>\n"
    )


def _section(title: str, text: str) -> str:
    return f"<h2>{title}</h2>\n<p>{escape(text)}</p>"


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _who(source: PackSource) -> str:
    """Return in words who held the real rows, and who could see what of them."""
    stated, sites = source.statement, number_of(len(source.sites), "site")
    if stated.simulated:
        return (
            f"One party held the records of {sites}, and ran the program over them on one machine: it saw all of them. "
            "The guarantee is against everybody else."
        )
    facts = TRUSTS.get(stated.terms.trust)
    demands = "" if facts is None else f" {facts.demands}"
    return (
        f"{sites} ({', '.join(source.sites)}) hold the records and kept them. They answered questions about counts, "
        f"under limits that each keeps on its own machine.{demands}"
    )


def data_sheet(source: PackSource) -> str:
    """Return the data sheet, by the questions of Gebru et al., "Datasheets for Datasets" (arXiv 1803.09010)."""
    details, stated, card = source.details, source.statement, source.card
    rows, columns = f"{source.rows:,} rows", number_of(len(source.columns), "column")
    missing = sum(bool(getattr(column, "missing", False)) for column in source.columns)
    contact = details.contact or "Not stated."
    answers = {
        "Motivation": {
            "For what purpose was it made?": details.purpose or "Not stated.",
            "Who made it, and who answers for it?": details.publisher,
        },
        "Composition": {
            "What does a row stand for?": f"Nothing: each is invented. The real rows: {details.about}",
            "How many are there?": f"{rows} of {columns}; {missing} of them may have missing values.",
            "Is it a sample of a larger set?": f"No. Its model was fitted to about {card.records:,.0f} real rows.",
            "What is in each column?": "data/codebook.csv says it, with bounds and values.",
            "Are there errors or noise?": "Yes, on purpose; about.md says how far counts can be trusted.",
            "Does it hold confidential data, or data on single persons?": stated.sentence,
        },
        "Collection": {
            "How were the data acquired?": _who(source),
            "By which procedure?": f"Method {card.method}; agreed/plan.toml has the terms, proof/ every question.",
            "Were the persons asked or told?": "Not stated here; it is for each site to say of its records.",
        },
        "Preparation": {
            "Was anything cleaned or labelled?": (
                "Each site read its rows as the schema says (proof/schema.toml): values beyond the bounds were moved "
                "or left out, unlisted ones counted as the codebook says. How many is not released."
            ),
            "Are the raw data kept?": "By their owners; they are not part of this pack.",
        },
        "Uses": {
            "What should it not be used for?": (
                "Decisions about single persons; standard errors by programs that take its rows for real ones; counts "
                "of groups below those that about.md names."
            ),
            "What may bias it?": "Relations that the model does not hold are absent (about.md lists those it holds).",
        },
        "Distribution and maintenance": {
            "How is it licensed?": f"{details.licence} ({details.licence_url})",
            "When was it published?": details.date,
            "Who maintains it, and how can they be reached?": f"{details.publisher}. Contact: {contact}",
            "Will it be updated?": "Each update is a run of its own, with a cost to privacy of its own.",
            "How is it cited?": details.citation,
        },
    }
    parts = [f"# Data sheet: {markdown(details.title)}"]
    for heading, questions in answers.items():
        lines = [f"**{question}** {markdown(answer)}" for question, answer in questions.items()]
        parts += [f"## {heading}", "\n\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def read_me(source: PackSource) -> str:
    """Return the page that says what is in the folder, and how a stranger verifies it."""
    signed = "" if source.statement.simulated else " --identity coordinator=KEY"
    keys = "" if source.statement.simulated else ", with the key that the consortium gave you"
    return f"""# {markdown(source.details.title)}

{markdown(source.statement.sentence)}

| file | what it is |
|---|---|
| `data/` | the synthetic table (CSV for spreadsheets, Parquet for programs) and its codebook |
| `read.R` | reads the table in R: `source("read.R"); table <- read_pack()` |
| `about.md` | how far it can be trusted: read it before you count |
| `statement.html` | the statement on privacy, for lawyers |
| `data-sheet.md`, `LICENCE.txt` | data sheet, licence |
| `agreed/` | what was agreed: terms, plan of questions, roster |
| `proof/` | what the privacy cost is recomputed from, and the sites' signed extracts |
| `croissant.json`, `dcat.ttl`, `registry.yaml` | entries for catalogues |
| `manifest.json`, `signatures/` | SHA-256 of each file, and who signed them |

To verify it without a network{keys}:

    pip install fedsynth=={fedsynth.__version__}
    fedsynth verify .{signed}
"""
