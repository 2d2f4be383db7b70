"""B2: a CSV file is of one declared kind, so that one record never decides how others are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from tests.attacks.world import BUDGET, COORDINATOR, ask_deployed, question, values

from fedsynth.federation.policy import VERBS
from fedsynth.federation.query import Counts
from fedsynth.host.config import SiteConfig, load_site_config
from fedsynth.host.state import create_state
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema

SCHEMA = Schema((Categorical("sex", ("f", "m")), Categorical("item", ("bandage", "splint", 'bandage 6"'))))
ROWS = 20_000
OPEN = 'm,"bandage'  # the record of one person, with a quote that is never closed


def stock(*more: str) -> list[str]:
    """Return the lines of a site's file: 20,000 rows, of which one, three quarters down, ends in a quote."""
    sexes = np.random.default_rng(0).choice(["f", "m"], ROWS)
    lines = [f"{sex},{'bandage' if k % 3 else 'splint'}" for k, sex in enumerate(sexes)]
    lines[3 * ROWS // 4] = 'f,bandage 6"'
    return [*more, *lines]


def deployed(folder: Path, text: str | bytes, **source: Any) -> SiteConfig:
    """Return a deployed site with a CSV file of this text, as its steward set it up."""
    folder.mkdir(parents=True)
    SCHEMA.save(folder / "schema.toml")
    (folder / "rows.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    content = {
        "site": {"name": "north"},
        "source": {"data": "rows.csv", "schema": "schema.toml", **source},
        "coordinator": {"key": COORDINATOR.public.hex()},
        "policy": {
            "budget": {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta},
            "trusts": {"local": {}},
            "verbs": list(VERBS),
            "plans": "any",
        },
        "flower": {"superlink": "127.0.0.1:9"},
    }
    (folder / "site.toml").write_text(tomli_w.dumps(content))
    config = load_site_config(folder)
    create_state(config)
    return config


def file_of(lines: list[str]) -> str:
    return "\n".join(["sex,item", *lines, ""])


def counted(config: SiteConfig) -> np.ndarray[Any, Any]:
    """Return a site's answer to: how many rows of each sex? Its noise, of rho 1e-4, has standard deviation 71."""
    asked = question(Counts.of(2, ((0,),)), schema=SCHEMA.digest)
    return values(ask_deployed(config, asked))


def test_b02_a_quote_that_is_never_closed_takes_no_other_row_along(tmp_path):
    """The answer (9982, 10008) became (2536, 2425) by this one record."""
    without = counted(deployed(tmp_path / "without", file_of(stock())))
    with_it = counted(deployed(tmp_path / "with", file_of(stock(OPEN))))
    assert np.abs(without - with_it).max() < 10 * 2**0.5 * 71
    assert with_it.sum() > ROWS - 1000
