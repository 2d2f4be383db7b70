"""Sphinx configuration of the documentation: ``make docs`` builds it, with warnings as errors."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src"), str(HERE.parent)]

import generated_pages  # noqa: E402

import fedsynth  # noqa: E402

# Code cells run in processes of their own: they find the command line, this source tree and one thread each.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["PYTHONPATH"] = str(HERE.parent / "src")
os.environ |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100", "PYTHONWARNINGS": "ignore"}

# Kernels that read nobody's own configuration, and say no more than what fails.
PROFILE = HERE / "_build" / "ipython" / "profile_default"
PROFILE.mkdir(parents=True, exist_ok=True)
(PROFILE / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
os.environ["IPYTHONDIR"] = str(PROFILE.parent)
logging.getLogger("traitlets").setLevel(logging.WARNING)

project = "fedsynth"
author = "the authors of fedsynth"
copyright = "the authors of fedsynth, Apache-2.0"
version = release = fedsynth.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "sphinx_copybutton",
    "run_commands",
]
exclude_patterns = ["_build", "_ext", "_templates"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of annotations: NumPy, msgspec and what is no public name
suppress_warnings = ["config.cache"]

# Pages
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "cells")
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_render_markdown_format = "myst"
smartquotes = False  # else --out becomes a dash

# Reference
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autosummary_generate = True
autosummary_ignore_module_all = False
napoleon_google_docstring = False
python_display_short_literal_types = True

# Looks
html_theme = "furo"
html_title = "fedsynth"
html_static_path = ["_static"]
html_css_files = ["fedsynth.css"]
html_js_files = ["sortable.js", "accessible.js"]
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"


def setup(app):
    """Write the pages that are made from the source before Sphinx looks for pages; make plain docstrings readable."""
    generated_pages.write_all(HERE)
    app.connect("autodoc-process-docstring", generated_pages.paragraphs_before_parameters, priority=100)
    app.connect("autodoc-process-docstring", generated_pages.as_restructured_text)
    app.connect("autodoc-process-signature", generated_pages.signature_of_fields)
