"""The entry of a pack for the registry of deployments of differential privacy (YAML, https://registry.opendp.org)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import fedsynth
from fedsynth.errors import number_of
from fedsynth.privacy.ledger import releases_table
from fedsynth.publish.source import PackSource
from fedsynth.trusts import TRUSTS


def registry_entry(source: PackSource) -> str:
    """Return the entry, as a draft for its authors to send in: what nobody told is said to be not stated."""
    return "".join(_yaml(_entry(source)))


def _entry(source: PackSource) -> dict[str, Any]:
    details = source.details
    slug = re.sub(r"[^a-z0-9]+", "-", f"{details.title} {details.publisher} {details.date[:4]}".lower()).strip("-")
    basic = {
        "name": details.title,
        "data_curators": [details.publisher],
        "description": details.about,
        "intended_use": details.purpose or "Not stated.",
        "data_product_type": "Synthetic data",
        "data_product_region": details.region or "Not stated.",
        "publication_date": details.date,
    }
    administrative = {"sources": details.url or "Not stated.", "registry_authors": [details.publisher]}
    deployment = {"basic": basic, **_guarantee(source), **_made(source), "administrative": administrative}
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def _guarantee(source: PackSource) -> dict[str, Any]:
    """Return the sections on the variant of differential privacy, its parameters, and who has to be trusted."""
    stated, sites = source.statement, number_of(len(source.sites), "site")
    limit, trust = stated.limit, stated.terms.trust
    demands = TRUSTS[trust].demands if trust in TRUSTS else f"See the documentation of the trust {trust}."
    who = (
        f"The rows of {sites} were held by one party, who ran this and saw them all."
        if stated.simulated
        else f"{sites} that keep their rows, and a coordinator that asks questions about counts. {demands}"
    )
    return {
        "dp_variant": {
            "variant_name": "Pure DP" if limit.pure else "Approximate DP",
            "data_domain": "Tables of any number of rows under the public schema, proof/schema.toml of the pack.",
            "unprotected_quantities": "The number of rows at each site." if stated.terms.public_sizes else "None.",
        },
        "privacy_loss": {
            "privacy_unit": source.sheet.protected,
            "privacy_unit_details": stated.sentence,
            "privacy_parameters": {"epsilon": stated.epsilon} | ({} if limit.pure else {"delta": limit.delta}),
            "privacy_parameters_details": " ".join(stated.conditions),
        },
        "deployment_model": {
            "model_name": "Central" if stated.simulated else "Federated",
            "model_name_details": f"Trust: {trust}.",
            "actors": who,
            "release_type": "One release",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
    }


def _made(source: PackSource) -> dict[str, Any]:
    """Return the sections on accounting and implementation."""
    return {
        "accounting": {
            "post_processing": "A model was fitted to the noisy answers, and the rows were drawn from it.",
            "composition": (
                "Sequential, by zero-concentrated differential privacy; of pure epsilons, their sum. proof/sheet.txt "
                "of the pack lists each release with its cost."
            ),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": (
                "Bounds and lists of values are those of a schema that was agreed on as public. Settings follow from "
                f"public facts. Method: {source.card.method}."
            ),
            "mechanisms": (
                f"fedsynth {fedsynth.__version__}; exact integer samplers, no floating-point noise.\n"
                f"{releases_table(source.card.releases)}"
            ),
            "justification": "The pack holds what the run's privacy cost is recomputed from: `fedsynth verify`.",
        },
    }


def _yaml(entries: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return the lines of a mapping as YAML, of which JSON's strings, numbers and lists are a part."""
    lines: list[str] = []
    for name, value in entries.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:\n", *_yaml(value, f"{indent}  ")]
        else:
            text = json.dumps(value, ensure_ascii=False)
            if isinstance(value, float) and "e" in text and "." not in text:
                text = text.replace("e", ".0e")  # YAML 1.1 takes 1e-06 for a word
            lines.append(f"{indent}{name}: {text}\n")
    return lines
