"""The public names: what ``import fedsynth`` gives, and nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedsynth
from fedsynth.schema.columns import Column

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_exactly_these_names_are_public():
    expected = {kind.__name__ for kind in Column.__args__} | {"Computed", "Identifier", "Rule", "Schema", "Stored"}
    expected |= {"fit", "read_table", "split", "evaluate", "advise", "compare", "load_run", "load", "federate"}
    expected |= {"Budget", "Unit", "Synthesizer", "FedsynthError", "__version__"}
    assert set(fedsynth.__all__) == expected
    assert len(fedsynth.__all__) == len(expected) <= 25
    assert dir(fedsynth) == sorted(fedsynth.__all__)


def test_every_name_comes_from_the_home_that_the_table_gives_and_says_what_it_is():
    for name, home in fedsynth._HOME.items():
        found = getattr(fedsynth, name)
        assert found is getattr(import_module(home), name)
        assert found.__module__.startswith(home)
        assert found.__doc__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fedsynth.nothing


def test_type_checkers_see_what_the_table_says():
    tree = ast.parse(Path(fedsynth.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name  # else it is no public name to a type checker
            seen[alias.name] = node.module
    assert seen == fedsynth._HOME


def test_a_federation_and_a_method_load_neither_pandas_nor_scipy():
    """They take longer to import than all else, and tables that are encoded need neither."""
    code = (
        "import sys; from fedsynth import federate; from fedsynth.methods.oneshot import OneShot; "
        "print({'pandas', 'scipy', 'pyarrow'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


def test_importing_the_package_imports_nothing_of_it():
    code = "import sys, fedsynth; dir(fedsynth); print(sorted(m for m in sys.modules if m.startswith('fedsynth')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['fedsynth']"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_pages_import_what_there_is(page):
    for module, names in re.findall(r"^\s*from (fedsynth[\w.]*) import ([\w, ]+)", page.read_text(), re.MULTILINE):
        for name in names.split(","):
            assert hasattr(import_module(module), name.strip()), (module, name)
            if module == "fedsynth":
                assert name.strip() in fedsynth.__all__
