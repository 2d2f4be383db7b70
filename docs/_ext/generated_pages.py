"""Pages that are made from the source: commands from their functions, settings, proofs, the API, exit codes, results.

They lie in ``reference/commands``, ``reference/settings.md``, ``reference/api.rst``, ``proofs/generated`` and
``results``, which git ignores. A page that would not change is left as it is, so that Sphinx does not read it again.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
from benchmarks.pages import result_pages
from cyclopts import App

import fedsynth
from fedsynth import datasets, errors
from fedsynth.cli.adapter import Option, help_of
from fedsynth.cli.app import app
from fedsynth.cli.layout import Command, help_text
from fedsynth.data.sources.source_file import CsvSection, LookupSection, SourceColumn, SourceFile
from fedsynth.deploy.host.config import CoordinatorSection, FlowerSection, SiteSection, SourceSection
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.federation.policy_file import PolicySection
from fedsynth.federation.query import BUILT_IN, PUBLISHED, Query, Selection, Training, query_class
from fedsynth.methods import all_methods
from fedsynth.privacy import release
from fedsynth.runs.job import Deployment, Job
from fedsynth.settings import texts
from fedsynth.trusts import TRUSTS

ROOT = Path(__file__).parents[2]


SETTINGS: Mapping[str, type[msgspec.Struct]] = {
    "`job.toml` and `run.toml`": Job,
    "`job.toml`: `[deployment]`": Deployment,
    "`site.toml`: `[site]`": SiteSection,
    "`site.toml`: `[source]`": SourceSection,
    "`site.toml`: `[flower]`": FlowerSection,
    "`site.toml`: `[coordinator]`": CoordinatorSection,
    "`site.toml`: `[policy]`": PolicySection,
    "Source file": SourceFile,
    "Source file: `csv`": CsvSection,
    "Source file: `lookup`": LookupSection,
    "Source file: `[column.NAME]`": SourceColumn,
    "Keywords of `fedsynth.evaluate`": EvaluationSettings,
}


def write_all(docs: Path) -> None:
    """Write every generated page below ``docs``, and delete those of earlier builds that are made no more."""
    pages = {**commands(), **settings(), **api(), **exit_codes(), **proofs(), **result_pages()}
    for folder in ("reference/commands", "proofs/generated", "results"):
        for old in (docs / folder).glob("*.md"):
            if old.relative_to(docs).as_posix() not in pages:
                old.unlink()
    for name, text in pages.items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def paragraphs_before_parameters(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Move paragraphs that follow the list of parameters in front of it, in place: NumPy's format has none there."""
    heads = [at for at in range(len(lines) - 1) if lines[at] == "Parameters" and lines[at + 1] == "----------"]
    if not heads:
        return
    start = end = heads[0] + 2
    while end < len(lines) and (
        not lines[end] or lines[end].startswith(" ") or (lines[end + 1 : end + 2] and lines[end + 1].startswith("    "))
    ):
        end += 1
    lines[:] = [*lines[: start - 2], *lines[end:], "", *lines[start - 2 : end]]


def as_restructured_text(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Make a docstring, in place, what Sphinx reads without complaint: norms |x|, rules as a list, formulas kept.

    Formulas are indented lines after an empty one, in docstrings that describe no parameters.
    """
    fields = any(line.startswith(":") for line in lines)
    made: list[str] = []
    rule = formula = False
    for line in lines:
        indented = line.startswith("    ")
        starts = re.match(r"(Rule \d+[:.]) (.*)", line)
        if indented and not rule and not formula and not fields and made and not made[-1]:
            if not (len(made) > 1 and made[-2].endswith("::")):
                made += ["::", ""]
            formula = True
        elif line and not indented:
            formula = False
        if starts and not rule:
            made.append("")
        rule = bool(starts) or (rule and line.startswith(" "))
        if formula:
            made.append(line)
        elif starts:
            made.append(f"* **{starts[1]}** {_escaped(starts[2])}")
        else:
            made.append(f"  {_escaped(line.strip())}" if rule else _escaped(line))
    lines[:] = made


def signature_of_fields(
    app: Any, what: str, name: str, found: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Return the signature of a struct by the names of its fields: their types say bounds at a length nobody reads."""
    if what != "class" or not issubclass(found, msgspec.Struct):
        return None
    return f"({', '.join(found.__struct_fields__)})", ""


def _escaped(line: str) -> str:
    """Return a line whose bars are no substitutions; code in it stays as it is."""
    parts = re.split(r"(``.*?``|:\w+:`.*?`)", line)
    return "".join(part.replace("|", r"\|") if at % 2 == 0 else part for at, part in enumerate(parts))


# ---------------------------------------------------------------------------------------------------------------------
# The command line


def commands() -> dict[str, str]:
    """Return a page for each command, with the commands of a group on one page."""
    found = {name: one for name, one in app.resolved_commands().items() if not name.startswith("-")}
    pages = {}
    for name, one in found.items():
        parts = [f"# fedsynth {name}", *_command(f"fedsynth {name}", one)]
        for inner in one:
            if not inner.startswith("-"):
                parts += [f"## fedsynth {name} {inner}", *_command(f"fedsynth {name} {inner}", one[inner])]
        pages[f"reference/commands/{name}.md"] = "\n\n".join(parts) + "\n"
    lines = [f"| [`fedsynth {name}`](commands/{name}.md) | {_first(one)} |" for name, one in found.items()]
    head = (
        "# Commands\n\nMade from the program itself, like the text of `--help`. Tables and explanations that concern "
    )
    head += (
        "several commands are on [the page about the command line](../cli.md).\n\n| command | what it does |\n|---|---|"
    )
    tree = "```{toctree}\n:hidden:\n\n" + "".join(f"commands/{name}\n" for name in found) + "```\n"
    pages["reference/commands.md"] = "\n".join([head, *lines, "", tree])
    return pages


def _first(one: App) -> str:
    return " ".join(one.help.partition("\n")[0].split()).replace("|", "\\|")


def _command(path: str, one: App) -> Iterator[str]:
    usage = help_text(path, one).partition("\n\n")[0]
    yield f"```console\n{usage.removeprefix('Usage: ')}\n```"
    command = one.default_command
    text = help_of(command.function) if isinstance(command, Command) else inspect.cleandoc(one.help)
    text, _, examples = re.split(r"(\n\nExamples?:\n\n|\Z)", text, maxsplit=1)
    yield _with_code(text)
    if examples:
        blocks = re.split(r"\n\s*\n|\n(?=\s*fedsynth )", examples.replace("\\\n", ""))
        shown = [" ".join(block.split()) for block in blocks]
        yield "```console\n" + "\n".join(f"$ {line}" for line in shown if line) + "\n```"
    described = [_parameter(option) for option in command.options] if isinstance(command, Command) else []
    if described:
        yield "| option or argument | meaning |\n|---|---|\n" + "\n".join(described)


def _parameter(option: Option) -> str:
    name, meaning = (part.replace("|", "\\|") for part in (option.usage, option.described))
    return f"| `{name}` | {_with_code(meaning).replace('<', '&lt;')} |"


def settings() -> dict[str, str]:
    """Return the page of settings: entries of ``job.toml``, ``run.toml``, ``site.toml`` and source files, keywords."""
    parts = [
        "# Settings",
        "Made from the program itself. Entries of `job.toml` and `run.toml` have the names of the options of "
        "`fedsynth simulate`, with `_` in place of `-`; `--set` is the table `[options]` and `--trust-set` the table "
        "`[trust_options]`. [The page about policies](../policy.md) explains `[policy]`, and [the one about exports]"
        "(../how-to/prepare-your-export.md) source files.",
    ]
    for title, kind in SETTINGS.items():
        parts.append(f"## {title}")
        parts.append(
            "| entry | meaning |\n|---|---|\n" + "\n".join(setting(one, kind) for one in msgspec.structs.fields(kind))
        )
    return {"reference/settings.md": "\n\n".join(parts) + "\n"}


def setting(field: msgspec.structs.FieldInfo, kind: type) -> str:
    """Return the line of a field of a struct of settings."""
    default = {} if field.default_factory is not msgspec.NODEFAULT else field.default
    required = inspect.Parameter.empty if default is msgspec.NODEFAULT else default
    text = texts(kind).get(field.name) or f"the section `[{field.name}]`"
    described = Option(field.name, f"--{field.name}", field.type, required, text).described.replace("|", "\\|")
    return f"| `{field.encode_name}` | {_with_code(described).replace('<', '&lt;')} |"


def _with_code(text: str) -> str:
    """Return a help text as Markdown; options that it names outside of code become code."""
    parts = re.split(r"(`[^`]*`)", text)
    options = r"(?<![\w-])(--[a-z][\w-]*)"
    return "".join(
        part if at % 2 else re.sub(options, r"`\1`", part.replace("*", "\\*")) for at, part in enumerate(parts)
    )


# ---------------------------------------------------------------------------------------------------------------------
# The public names

GROUPS: Mapping[str, tuple[str, ...]] = {
    "The front door": ("api", "bench", "deploy", "evaluation"),
    "Running a federation": ("federation", "privacy", "models.synthesizer", "errors"),
    "The schema": ("schema",),
}
HANDED: tuple[str, ...] = (
    "fedsynth.federation.federation.Federation",
    "fedsynth.federation.federation.Sum",
    "fedsynth.federation.query.Query",
    "fedsynth.federation.query.Selection",
    "fedsynth.methods.registry.method",
    "fedsynth.privacy.ledger.Ledger",
    "fedsynth.statement.Statement",
)


def api() -> dict[str, str]:
    """Return the page of the public names, each below the group that its home belongs to; none may be left out."""
    parts = [
        _title("Python", "="),
        "Everything that ``import fedsynth`` gives, then methods, trusts and errors in their modules. A name that is "
        "not here may change without notice.",
    ]
    left = set(fedsynth.__all__) - {"__version__"}
    for title, homes in GROUPS.items():
        names = sorted(name for name in left if _belongs(fedsynth._HOME[name].removeprefix("fedsynth."), homes))
        left -= set(names)
        parts += [_title(title, "-"), _summary(f"fedsynth.{name}" for name in names)]
    if left:
        raise RuntimeError(f"no group of the API page has {sorted(left)}; add their modules to GROUPS")
    kinds = [one.kind for one in all_methods() if one.private and one.kind.__module__.startswith("fedsynth.")]
    parts += [
        _title("Methods", "-"),
        _summary(f"{kind.__module__}.{kind.__name__}" for kind in kinds),
        _title("Trusts", "-"),
        _summary(facts.place.replace(":", ".") for facts in TRUSTS.values()),
        _title("Errors", "-"),
        _summary(
            f"fedsynth.errors.{name}"
            for name, one in vars(errors).items()
            if inspect.isclass(one) and issubclass(one, Exception) and name not in fedsynth.__all__
        ),
        _title("Example tables", "-"),
        "In the module ``fedsynth.datasets``; :doc:`fedsynth example <commands/example>` writes the patients to files.",
        _summary(f"fedsynth.datasets.{name}" for name in datasets.__all__),
        _title("What a method is handed", "-"),
        "For those who :doc:`write a method <../how-to/write-a-method>`.",
        _summary(HANDED),
    ]
    return {"reference/api.rst": "\n\n".join(parts) + "\n"}


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}"


def _belongs(module: str, homes: Iterable[str]) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def _summary(names: Iterable[str]) -> str:
    listed = "".join(f"   {name}\n" for name in names)
    return f".. autosummary::\n   :toctree: api\n   :nosignatures:\n\n{listed}"


def exit_codes() -> dict[str, str]:
    """Return the page of the errors, their exit codes and what each means."""
    kinds = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.FedsynthError)]
    rows = sorted(
        (errors.exit_code(kind("")), kind.__name__, (kind.__doc__ or "").partition("\n")[0]) for kind in kinds
    )
    lines = [f"| {code} | `{name}` | {text} |" for code, name, text in rows]
    head = (
        "# Errors and exit codes\n\nEvery error that fedsynth raises for its users is one of these, and ends a command "
        "with the code beside it. The other codes are 0 (done), 1 (a fault of fedsynth's own), 130 (stopped by the "
        "user) and 141 (nobody reads the output any more); "
        "[the page about the command line](../cli.md#exit-codes) says what each code means for single commands. With "
        "`--json` the class is in `error`, its text in `message` and the code in `exit_code`.\n\n"
        "| code | error in Python | meaning |\n|---|---|---|\n"
    )
    return {"reference/exit-codes.md": head + "\n".join(lines) + "\n"}


# ---------------------------------------------------------------------------------------------------------------------
# Proofs

QUERY_TESTS: Mapping[type, tuple[str, ...]] = {
    Training: ("test_a_row_moves_the_sum_of_a_step_no_further_than_declared",),
    Query: ("test_a_row_moves_an_answer_no_further_than_declared",),
    Selection: ("test_a_row_moves_no_utility_further_than_declared",),
}
RELEASE_TESTS: Mapping[str, tuple[str, ...]] = {
    "gaussian": (
        "tests/privacy/test_release.py::test_noise_is_never_smaller_than_paid_for",
        "tests/privacy/test_noise.py::test_discrete_gaussian_has_its_law",
    ),
    "laplace": (
        "tests/privacy/test_release.py::test_laplace_noise_is_never_smaller_than_paid_for",
        "tests/privacy/test_noise.py::test_discrete_laplace_has_its_law",
    ),
    "sampled": (
        "tests/privacy/test_sampling.py::test_the_discrete_law_has_these_divergences_in_both_directions",
        "tests/privacy/test_sampling.py::test_the_privacy_loss_distribution_never_exceeds_our_bound",
    ),
    "exponential": ("tests/privacy/test_release.py::test_a_small_pure_draw_never_costs_more_than_its_share",),
    "deposit": ("tests/federation/test_federation.py::test_a_vault_releases_what_was_deposited_and_not_more",),
    "adaptive": ("tests/privacy/test_release.py::test_costs",),
    "public": ("tests/privacy/test_release.py::test_costs",),
    "exact": ("tests/privacy/test_release.py::test_costs",),
}
FOUNDATIONS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "noise": (
        "Exact noise",
        "fedsynth.privacy.noise",
        ("tests/privacy/test_noise.py::test_two_samples_agree_with_opendp",),
    ),
    "composition": (
        "Costs that add up",
        "fedsynth.privacy.cost",
        ("tests/privacy/test_cost.py::test_a_budget_is_spent_in_its_own_currency",),
    ),
    "exact-accounting": (
        "Exact accounting of Gaussian noise",
        "fedsynth.privacy.gaussian",
        ("tests/privacy/test_gaussian.py::test_no_split_of_a_sensitivity_over_cells_has_more_delta_than_stated",),
    ),
    "losses": (
        "Exact accounting of noise on random samples of rows",
        "fedsynth.privacy.losses",
        (
            "tests/privacy/test_losses.py::test_integer_noise_has_no_more_delta_than_stated",
            "tests/privacy/test_losses.py::test_another_accountant_finds_the_same",
        ),
    ),
    "sampling": (
        "Noise on random samples of rows",
        "fedsynth.privacy.sampling",
        ("tests/privacy/test_sampling.py::test_rows_of_a_person_that_are_drawn_one_by_one_cost_what_is_charged",),
    ),
    "gradients": (
        "Clipped gradient sums",
        "fedsynth.deep.dpsgd",
        ("tests/contract/test_queries.py::test_a_row_moves_the_sum_of_a_step_no_further_than_declared",),
    ),
    "noise-shares": (
        "Noise in shares",
        "fedsynth.secure.noise_shares",
        ("tests/secure/test_shares.py::test_a_share_costs_what_the_release_says_among_however_many_honest_sites",),
    ),
    "secure-sum": (
        "The secure sum at a site",
        "fedsynth.secure.site",
        (
            "tests/secure/test_secure_view.py"
            "::test_with_the_honest_minimum_left_colluders_learn_the_release_and_no_single_site",
        ),
    ),
    "secure-graph": (
        "The graph of a large secure sum",
        "fedsynth.secure.graph",
        ("tests/secure/test_graph.py::test_bad_graphs_are_as_rare_as_computed",),
    ),
    "three-servers-shares": (
        "Shares among three servers",
        "fedsynth.servers.shares",
        ("tests/servers/test_three_servers.py::test_one_servers_view_is_uniform_whatever_the_table_is",),
    ),
    "three-servers-questions": (
        "What three servers are asked",
        "fedsynth.servers.questions",
        (
            "tests/servers/test_three_servers.py::test_no_utility_moves_by_more_than_the_noise_is_made_for",
            "tests/servers/test_three_servers.py::test_public_inputs_that_could_wrap_are_refused_by_every_server",
        ),
    ),
    "three-servers-draw": (
        "A draw among three servers",
        "fedsynth.servers.draw",
        (
            "tests/servers/test_draw.py::test_a_draw_is_that_of_plain_integers",
            "tests/servers/test_draw.py::test_what_is_opened_says_nothing_of_the_numbers",
        ),
    ),
}
"""Page, title, module whose docstring has the proof, and its tests."""


def proofs() -> dict[str, str]:
    """Return a page for each kind of question, each kind of release, and each of the modules that they rest on."""
    questions = {kind: query_class(kind, None) for kind in (*BUILT_IN, *PUBLISHED)}
    releases = {one.__struct_config__.tag: one for one in get_args(release.Release)}
    if missing := set(releases) ^ set(RELEASE_TESTS):
        raise RuntimeError(f"releases without a test, or tests without a release: {sorted(missing)}; see RELEASE_TESTS")
    pages = {f"proofs/generated/question-{kind}.md": _question(kind, one) for kind, one in questions.items()}
    pages |= {f"proofs/generated/release-{tag}.md": _release(tag, one) for tag, one in releases.items()}
    for name, (title, module, tests) in FOUNDATIONS.items():
        body = f"```{{eval-rst}}\n.. automodule:: {module}\n   :no-members:\n```"
        parts = [f"# {title}", f"Defined in `{_path(module)}`.", body, "## The test", *map(_test, tests)]
        pages[f"proofs/generated/{name}.md"] = "\n\n".join(parts) + "\n"
    return pages


def _question(kind: str, found: type) -> str:
    """Return the page of a kind of question: what it computes, how far a row moves it, what is refused, the test."""
    bound = "span" if issubclass(found, Selection) else "sensitivity"
    tests = next(tests for base, tests in QUERY_TESTS.items() if issubclass(found, base))
    parts = [
        f"# Question: {kind}",
        f"Defined as `{found.__qualname__}` in `{_path(found.__module__)}`.",
        _directive("autoclass", found),
        "## How far one row moves it",
        _directive("automethod", found, bound),
        "## What is refused before anything is charged",
        _directive("automethod", found, "check"),
        "## The test",
        f"Parameters are drawn from their whole domain by the strategy of `{kind}` in `tests/contract`; to run it: "
        f"`pytest tests/contract/test_queries.py -k {kind}`.",
        *(_test(f"tests/contract/test_queries.py::{name}") for name in tests),
    ]
    return "\n\n".join(parts) + "\n"


def _release(tag: str, found: type) -> str:
    """Return the page of a kind of release: what is added or drawn, what it costs, the tests."""
    parts = [
        f"# Release: {tag}",
        f"Defined as `{found.__qualname__}` in `{_path(found.__module__)}`.",
        _directive("autoclass", found),
        "## What it costs",
        _directive("automethod", found, "cost"),
        "## The test",
        *map(_test, RELEASE_TESTS[tag]),
    ]
    return "\n\n".join(parts) + "\n"


def _directive(kind: str, found: type, member: str = "") -> str:
    """Return an autodoc directive; a method that is inherited is documented where it is written."""
    place = f"{found.__module__}.{found.__qualname__}"
    options = "   :no-index:\n" if member else ""
    return f"```{{eval-rst}}\n.. {kind}:: {place}{'.' if member else ''}{member}\n{options}```"


def _path(module: str) -> str:
    file = Path(inspect.getsourcefile(importlib.import_module(module)) or "")
    return file.resolve().relative_to(ROOT.resolve()).as_posix()


def _test(place: str) -> str:
    """Return the source of a test, folded away; raises where it is not there."""
    file, _, name = place.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body):
        raise RuntimeError(f"there is no {place}, which a page of proofs names")
    source = os.path.relpath(ROOT / file, ROOT / "docs" / "proofs" / "generated")
    return f"```{{dropdown}} {place}\n:::{{literalinclude}} {source}\n:pyobject: {name}\n:language: python\n:::\n```"
