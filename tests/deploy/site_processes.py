"""Answers for many sites, each in a process of its own that has loaded already what `fedsynth site serve` needs.

    python tests/deploy/site_processes.py HOST:PORT FOLDER...

A hundred processes that each start by themselves would spend minutes of CPU time on imports. Each one logs to
``serve.log`` in its folder; all are in this process's group.
"""

import os
import sys

import fedsynth.data.read
import fedsynth.deploy.flower.node
import fedsynth.deploy.host.rows
import fedsynth.secure.site  # noqa: F401  (loaded for the forks)
from fedsynth.cli.app import main


def serve(folder: str, superlink: str) -> None:
    """Become the process of a site."""
    log = os.open(os.path.join(folder, "serve.log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    sys.argv = ["fedsynth", "site", "serve", folder, "--superlink", superlink]
    main()


if __name__ == "__main__":
    superlink, *folders = sys.argv[1:]
    for folder in folders:
        if not os.fork():
            serve(folder, superlink)
            sys.exit()
    for _ in folders:
        os.wait()
