"""What every test begins with: no variable of the environment that makes the command line write as to a terminal."""

from __future__ import annotations

import os

for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # Rich's; machines that run tests for others set the first
    os.environ.pop(name, None)
