"""Public words: names of columns in several languages, and codes of sex and of yes and no. For drafts alone."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

_NAMES = """
age alter edad leeftijd eta
sex gender geschlecht sexe sexo geslacht sesso
height groesse koerpergroesse taille talla lengte statura
weight gewicht koerpergewicht poids peso
date datum fecha data
time zeit uhrzeit heure hora tijd
admission admitted aufnahme aufgenommen entree ingreso opname eintritt
discharge discharged entlassung entlassen sortie alta ontslag austritt
birth born geburt geboren geburtsdatum naissance nacimiento
death died tod gestorben deces muerte
smoker smoking raucher rauchen fumeur tabac fumador roker
ward station abteilung service afdeling
region bundesland provincia
diagnosis diagnose diagnostic diagnostico
nights naechte nuits noches
cost costs bill charges rechnung kosten rechnungsbetrag betrag facture montant cout factura
children kinder enfants hijos
income einkommen revenu ingresos
education bildung formation educacion
city stadt ort ville ciudad
country land pays pais
pulse puls pouls pulso
cholesterol cholesterin
glucose glukose blutzucker glycemie
readmitted wiederaufnahme wiederaufgenommen readmis reingreso
"""
_WORDS = {
    "female": "female woman weiblich frau femme feminin feminine mujer femenino vrouw vrouwelijk donna",
    "male": "male man maennlich mann homme masculin hombre masculino mannelijk uomo",
    "divers": "divers diverse d x nonbinary",
    "yes": "yes y ja j oui o si s true t wahr vrai 1",
    "no": "no n nein non nee false f falsch faux 0",
}
_CODES = (  # what a letter or number stands for beside the words, in one language or standard at a time
    {"f": "female", "w": "female", "m": "male"},
    {"f": "female", "h": "male"},
    {"m": "female", "h": "male"},
    {"v": "female", "m": "male"},
    {"k": "female", "m": "male"},
    {"1": "male", "2": "female"},  # ISO/IEC 5218
)


def folded(text: str) -> str:
    """Return a text in lower case without diacritics and umlauts, its words with one space between."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(sign))
    return " ".join(re.findall(r"[a-z0-9]+|[^\W_]+", re.sub("([aou])e", r"\1", plain)))


_WORD_OF = {folded(word): meaning for meaning, words in _WORDS.items() for word in words.split()}
_NAME_OF = {folded(name): names.split()[0] for names in _NAMES.strip().split("\n") for name in names.split()}


def named_alike(name: str, other: str) -> bool:
    """Return whether two folded names of columns have words for the same things, in any language known here."""
    one, two = (_things(text) for text in (name, other))
    return bool(one) and one == two


def _things(name: str) -> set[str]:
    """Return what a name's words are about; that it is a date or a time is said only of a name without another word."""
    found = set()
    for word in name.split():
        known = [start for start in _NAME_OF if word == start or (len(start) > 4 and word.startswith(start))]
        found |= {_NAME_OF[max(known, key=len)]} if known else set()
    return found - {"date", "time"} or found


def meanings(texts: Collection[str]) -> dict[str, str]:
    """Return what the codes of a column stand for, by text: "female", "male", "divers", "yes" or "no".

    One language or standard is taken for all codes, the first in which no two letters or digits mean the same; texts
    without a meaning are left out.
    """
    best: dict[str, str] = {}
    keys = {text: folded(text) for text in texts}
    letters = {key for key in keys.values() if len(key) == 1}
    sexes = [{**{word: of for word, of in _WORD_OF.items() if of not in ("yes", "no")}, **codes} for codes in _CODES]
    for system in ({word: of for word, of in _WORD_OF.items() if of in ("yes", "no")}, *sexes):
        found = {text: system[key] for text, key in keys.items() if key in system}
        coded = [system[letter] for letter in letters if letter in system]
        if len(set(coded)) == len(coded) and len(set(found.values())) > 1 and len(found) > len(best):
            best = found
    return best
