"""Function bodies are short enough to be read at once."""

from __future__ import annotations

import ast

from benchmarks import ROOT
from benchmarks.size import code_lines

MOST = 60  # lines of code, as ``make size`` counts them


def test_no_body_of_a_function_has_more_lines_than_can_be_read_at_once():
    too_long = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = code_lines(source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                size = len(lines.intersection(range(node.body[0].lineno, node.end_lineno + 1)))
                if size > MOST:
                    too_long[f"{path.relative_to(ROOT)}: {node.name}"] = size
    assert not too_long
