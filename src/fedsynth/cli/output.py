"""Text for people: as wide as the terminal, and without characters that control it."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from fedsynth.text import wrapped


def tell(text: str, stream: TextIO | None = None, *, entry: bool = False) -> None:
    """Print text for people, to standard output unless another ``stream`` is given.

    Control characters, as in files that others sent, are spelled out. Lines longer than :func:`text_width` are broken
    at spaces; an ``entry`` of a file, to be pasted, stays whole, as do those of standard error that is kept in a log.
    """
    stream, text = stream or sys.stdout, harmless(text)
    whole = stream is sys.stderr and not stream.isatty() and not os.environ.get("COLUMNS")
    print(text if whole or entry else wrapped(text, text_width()), file=stream, flush=True)


def text_width() -> int:
    """Return how wide text is: as the variable ``COLUMNS`` says, or as the terminal is, at most 100; 80 in a file."""
    width = shutil.get_terminal_size().columns
    return width if os.environ.get("COLUMNS") else min(width, 100)


def harmless(text: str) -> str:
    """Return a message without control characters: it may quote files that others sent."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
