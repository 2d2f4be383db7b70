"""The command line: the entry point, its exit codes, and the list of all commands, which are imported when needed.

Exit codes (documented in docs/cli.md): 0 done; 1 a bug in fedsynth; 2 wrong usage, or a file that cannot be used; 3 a
table or schema does not fit; 4 over budget; 5 refused by a site; 6 not supported; 7 too few sites; 8 any other error,
explained by its message; 9 files have to be carried; 130 stopped by the user; 141 nobody reads the output any more.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import select
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from cyclopts.exceptions import CycloptsError

import fedsynth
from fedsynth import errors
from fedsynth.cli.layout import Command, Commands, complaint

_DEPLOY = {
    "Set up": {
        "init": ("deploy.commands.deploy:deploy_init", "Write the server's folder and an invitation for each site."),
        "try": ("deploy.commands.enrol:deploy_try", "Rehearse the run on this machine with a test table."),
        "admit": ("deploy.commands.enrol:deploy_admit", "Admit sites: sign their certificates and list their keys."),
    },
    "Run": {
        "serve": (
            "deploy.commands.operate:deploy_serve",
            "Make the run whenever `deploy run` starts it, and take it up by itself after an interruption.",
        ),
        "run": ("deploy.commands.operate:deploy_run", "Start or resume the run, and show its progress."),
        "status": (
            "deploy.commands.operate:deploy_status",
            "Show the state of the last run, of all runs, or live on a web page.",
        ),
        "stop": ("deploy.commands.operate:deploy_stop", "Stop the run; `fedsynth deploy run` resumes it."),
    },
}
_SITE = {
    "Join and answer": {
        "adapt": (
            "cli.commands:site_adapt",
            "Draft a site's source file: how its own export is read for the agreed schema.",
        ),
        "join": ("deploy.commands.enrol:site_join", "Join a federation, in two steps, by files from the coordinator."),
        "check": ("deploy.commands.check:site_check", "Check that a site, or a machine that is to be one, is ready."),
        "serve": ("deploy.commands.deploy:site_serve", "Answer a federation's questions until stopped."),
    },
}
_COMPUTE = {
    "Commands": {
        "init": ("servers.commands:init", "Make a compute server's folder, keys and card (a file to send)."),
        "agree": ("servers.commands:agree", "Agree to the three servers' cards, or to a federation's terms."),
        "serve": ("servers.commands:serve", "Answer the coordinator and the two other servers until stopped."),
    }
}
_SCHEMA = {
    "Commands": {
        "draft": ("cli.commands:schema_draft", "Draft a schema from one site's table, for editing."),
        "merge": ("cli.commands:schema_merge", "Merge the schemas or outlines of several sites into one."),
        "check": ("cli.commands:schema_check", "Validate a table against a schema and list bad values."),
    }
}
COMMANDS: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "Make a synthetic table": {
        "simulate": ("cli.commands:simulate", "Split one table over simulated sites and synthesize it."),
        "demo": ("cli.commands:demo", "Run `simulate` and `report` on a built-in real table."),
        "example": ("cli.commands:example", "Write a table of made-up patients, to try commands with."),
        "schema": (
            _SCHEMA,
            """Draft a schema, merge those of several sites, or check a table against it.

            A schema is agreed on by all sites. It lists the columns that every site's table has, with the kind and the
            bounds or categories of each.
            """,
        ),
    },
    "Judge it": {
        "evaluate": ("evaluation.commands:evaluate", "Score a synthetic table against the real rows."),
        "report": ("evaluation.commands:report", "Write a report on a run's quality and privacy, as HTML."),
    },
    "Use it": {
        "answers": ("answers.commands:answers", "Show a run's answers to declared questions, each with its interval."),
        "sample": ("cli.commands:sample", "Draw more rows from a fitted model, at no privacy cost."),
        "augment": (
            "evaluation.augmentation.commands:augment",
            "Find out whether synthetic rows make a site's own classifier better.",
        ),
        "publish": ("publish.commands:publish", "Make a pack of a run that a stranger can verify."),
    },
    "Decide on a method and a budget": {
        "methods": ("cli.commands:methods", "List the methods that make the table, and their options."),
        "advise": ("cli.plan:advise", "Predict each method's error, to choose method and epsilon."),
        "plan": ("cli.plan:plan", "Predict a run's traffic and noise before it spends budget."),
        "compare": ("bench.commands:compare", "Compare federated, pooled and local runs of a method."),
    },
    "Federate real sites": {
        "deploy": (
            _DEPLOY,
            """Set up and run a real federation: commands of the server.

            The coordinator, who runs the server, gives these commands; each site gives those of `fedsynth site`.
            docs/deploy.md lists the steps in order.
            """,
        ),
        "site": (
            _SITE,
            """Join and answer a real federation: commands of a site.

            Each site gives these commands; the coordinator, who runs the server, gives those of `fedsynth deploy`.
            docs/deploy.md lists the steps in order.
            """,
        ),
        "compute-server": (
            _COMPUTE,
            """Run one of the compute servers of --trust three-servers.

            Each of the three servers holds random shares of the sites' tables, from which it alone learns nothing.
            Together they release noisy tables. docs/compute-servers.md lists the steps in order.
            """,
        ),
        "backup": ("deploy.commands.keep:backup", "Back up a site, or the server of a federation, to one file."),
        "restore": (
            "deploy.commands.keep:restore",
            "Restore a site or a server from a backup (checked first).",
        ),
    },
    "Check": {
        "account": ("deploy.commands.check:account", "Show and verify what a site or a compute server has charged."),
        "verify": (
            "publish.commands:verify",
            "Verify a pack or a run, offline: files, signatures, privacy cost.",
        ),
    },
    "Research": {
        "bench": ("bench.commands:bench", "Run a grid of experiments and write tables and plots."),
    },
}
"""All commands under the headings of ``--help``: the place of each one's function, or its own commands, and a summary.

Places start below ``fedsynth``. Help shows the summary, the first line of the function's docstring, and need not import
the function.
"""


_COMMON: Mapping[str, Any] = {
    "help_flags": ("--help", "--help-all"),
    "version_flags": (),
    "console": object(),  # texts are printed here: without one, cyclopts would import rich's for every help text
    "error_console": object(),
    "result_action": "return_value",
    "suppress_keyboard_interrupt": False,
}


def _commands(listed: Mapping[str, Mapping[str, tuple[Any, str]]], name: str, text: str) -> Commands:
    """Return a group of commands, without those of features that are not installed."""
    group = Commands(name, help=text, **_COMMON)
    for heading, commands in listed.items():
        for key, (inner, summary) in commands.items():
            if not isinstance(inner, str):
                one = _commands(inner, key, summary)
                one.group = (heading,)
                if any(not word.startswith("-") for word in one):
                    group.command(one)
            elif find_spec(f"fedsynth.{inner.split('.')[0]}"):
                place = f"fedsynth.{inner}"
                group.command(Commands(key, help=summary, group=heading, default_command=Command(place), **_COMMON))
    return group


app = _commands(
    COMMANDS,
    "fedsynth",
    """Make one synthetic table from the rows of many sites, without pooling them.

    A site is an organisation that holds rows of its own, such as a hospital.

    The table comes with a differential-privacy guarantee and a report of its quality.

    To try it, without any file:

      fedsynth demo

    To simulate ten sites with a table of your own:

      fedsynth simulate --data patients.csv --epsilon 1 --delta 1e-6 --out run
    """,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; this is the program ``fedsynth``.

    ``arguments`` are the words after the program's name (``None``: those of ``sys.argv``). An error is printed to
    standard error, or with ``--json`` as a JSON object to standard output.
    """
    _encode_output()
    words = sys.argv[1:] if arguments is None else list(arguments)
    json_, log = "--json" in words, None
    with ExitStack() as resources, warnings.catch_warnings():
        _warnings_to_log()
        try:
            if words == ["--version"]:
                print(f"fedsynth {fedsynth.__version__}")
                raise SystemExit(0)
            if words == ["--install-completion"]:
                print(f"installed in {app.install_completion(add_to_startup=True)}; open a new shell to use it")
                raise SystemExit(0)
            log, words = _log_file(words)
            if log is not None:
                from fedsynth.cli.options import log_to

                resources.enter_context(log_to(log, words))
            app.everything = "--help-all" in words
            code = app(words, print_error=False, exit_on_error=False)
            raise SystemExit(code or 0)
        except CycloptsError as error:
            command = " ".join(["fedsynth", *(error.command_chain or ())])
            _fail("UsageError", complaint(error), 2, json_, f"\nsee {command} --help")
        except KeyboardInterrupt as error:
            print("stopped; incomplete files were not written", file=sys.stderr)
            raise SystemExit(130) from error
        except errors.FedsynthError as error:
            _fail(type(error).__name__, str(error), errors.exit_code(error), json_)
        except OSError as error:
            if _unread(error):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes what is left at its end
                raise SystemExit(141) from error
            _fail("OSError", errors.explained(error), 2, json_)
        except Exception as error:
            if log is None:
                traceback.print_exc()
            else:
                logging.getLogger("fedsynth").critical("a bug in fedsynth", exc_info=error)
            where = "with the traceback above" if log is None else f"with the traceback in {log}"
            said = (
                "this is a bug in fedsynth, or in a method, metric or source of your own; please report one in fedsynth"
            )
            _fail("Fault", f"{said} {where}", 1, json_)


def _encode_output() -> None:
    """Write standard output and error as UTF-8 into files and pipes, whatever the system's encoding is.

    A terminal keeps its encoding, and gets "?" for a character that it cannot show.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's stream is none
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def _unread(error: OSError) -> bool:
    """Return whether an error says that standard output is a pipe that nobody reads any more, as after `| head`."""
    if not hasattr(select, "poll"):  # Windows, whose error for such a pipe may be EINVAL
        return error.errno in (errno.EPIPE, errno.EINVAL) and error.filename is None and not sys.stdout.isatty()
    if not isinstance(error, BrokenPipeError):
        return False
    output = select.poll()
    output.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _log_file(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file that --log-file names, before the command, and the words after it."""
    option, mark, value = words[0].partition("=") if words else ("", "", "")
    if option != "--log-file":
        return None, list(words)
    if not mark and len(words) == 1:
        raise errors.InvalidParameter("--log-file needs a value: the file to which the log is appended")
    rest = list(words[1:] if mark else words[2:])
    if rest and rest[0].partition("=")[0] == option:
        raise errors.InvalidParameter("--log-file is given more than once and takes one value: leave the others out")
    return Path(value if mark else words[1]), rest


def _warnings_to_log() -> None:
    """Have warnings about rows and columns logged like other warnings, in place of a line of source code."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if issubclass(category, errors.DataWarning):
            logging.getLogger("fedsynth").warning("%s", message)
        else:
            shown(message, category, *where, **options)

    warnings.showwarning = show
    warnings.simplefilter("default", errors.DataWarning)


def _fail(kind: str, message: str, code: int, json_: bool, hint: str = "") -> NoReturn:
    logging.getLogger("fedsynth").info("exit code %d: %s", code, message)
    if json_:
        import json

        print(json.dumps({"error": kind, "message": message, "exit_code": code}))
    else:
        from fedsynth.cli.output import tell

        tell(f"fedsynth: {message}{hint}", sys.stderr)
    raise SystemExit(code)
