"""Size of the package by folder: lines of code without imports, blank lines, comments and docstrings.

python -m benchmarks.size [FOLDER]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> set[int]:
    """Return the numbers of a module's lines of code: without imports, blank lines, comments and docstrings."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return code


def main() -> None:
    """Print the number of lines of each folder, and in total."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src/fedsynth")
    sizes: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        sizes[inside.parts[0] if len(inside.parts) > 1 else "."] += len(code_lines(path.read_text(encoding="utf-8")))
    for folder, lines in sizes.most_common():
        print(f"{lines:6,}  {folder}")
    print(f"{sum(sizes.values()):6,}  in all")


if __name__ == "__main__":
    main()
