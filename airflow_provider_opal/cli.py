"""`opal dag`: lint, render, schema and new, for the YAML files that DAGs are made from.

Airflow is loaded when one of these commands runs.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from opal_lake.cli.command import OpalParser, Verbs, exit_code_lines
from opal_lake.cli.render import Style
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.exit_codes import FINDINGS, OK, RETRY

if TYPE_CHECKING:
    from airflow_provider_opal.templates.yaml.lint.lint import Report

GROUP = "Airflow pipelines in YAML"
_FOLDER = "dags"


def commands(verbs: Verbs) -> None:
    """Register the verb `dag`. This is an entry point of `opal.commands`."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "dag",
        help="check, show and create pipelines in YAML",
        description="Check, show and create Airflow pipelines that are written in YAML.",
        epilog=exit_code_lines(),
    )
    parser.set_defaults(
        group=GROUP, example="opal dag lint dags", run=_usage(parser), traceback=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=OpalParser)
    _add_lint(actions)
    _add_render(actions)
    schema = _add(
        actions, "schema", "print the JSON Schema of the files for editors", schema_action
    )
    schema.epilog = _epilog("opal dag schema > dags/opal-v1.schema.json")
    new = _add(actions, "new", "write a first file for a new pipeline", new_action)
    new.add_argument("name", metavar="NAME", help="name of the pipeline, for example orders")
    new.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder to write to (default: the current folder)",
    )
    new.epilog = _epilog("opal dag new orders --folder dags")


def _add_lint(actions: Verbs) -> None:
    lint = _add(
        actions, "lint", "find mistakes in the files, and conflicts between files", lint_action
    )
    lint.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="PATH",
        help=f"a file or a folder (default: {_FOLDER} if it exists, otherwise the current folder)",
    )
    lint.add_argument(
        "--lake",
        action="store_true",
        help="also compare the files with the real tables, through Airflow's connections",
    )
    lint.add_argument(
        "--json", action="store_true", help="for programs: print only JSON to standard output"
    )
    lint.epilog = _epilog("opal dag lint dags --lake")


def _add_render(actions: Verbs) -> None:
    render = _add(
        actions,
        "render",
        "show the DAGs, tasks, schedules and assets that the files make",
        render_action,
    )
    render.add_argument("path", type=Path, metavar="PATH", help="a file or a folder")
    render.add_argument(
        "--json", action="store_true", help="for programs: print only JSON to standard output"
    )
    render.epilog = _epilog("opal dag render dags/shop.opal.yaml")


def _epilog(example: str) -> str:
    """Return the end of a help text: an example, and the exit codes."""
    return f"example:\n  {example}\n\n{exit_code_lines()}"


def _add(
    actions: Verbs, name: str, summary: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=summary[:1].upper() + summary[1:] + "."
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="show the traceback of an error; OPAL_TRACEBACK=1 does the same",
    )
    return parser


def _usage(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return OK

    return show


# The actions import late: Airflow takes seconds to load, and `opal --help` needs none of it
def lint_action(args: argparse.Namespace) -> int:
    _need_airflow()
    from airflow_provider_opal.templates.yaml.lint.lint import lint

    report = lint(args.path or _default_path(), lake=args.lake)
    if args.json:
        print(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        _print_report(report)
    if report.of_kind("error"):
        return FINDINGS
    if report.of_kind("unreachable"):
        return RETRY
    return OK


def _print_report(report: "Report") -> None:
    style = Style.of(sys.stdout)
    for problem in report.problems:
        if problem.kind == "warning":
            print(style.warn(f"warning: {problem}"))
        else:
            print(problem)
    errors = len(report.of_kind("error", "unreachable"))
    files = count_text(report.files, "file")
    pipelines = count_text(report.pipelines, "sound pipeline")
    if errors:
        print(style.bad(f"{files}, {pipelines}, {count_text(errors, 'problem')}"))
    else:
        print(style.good(f"{files}, {pipelines}, nothing is wrong"))


def render_action(args: argparse.Namespace) -> int:
    _need_airflow()
    from airflow_provider_opal.templates.yaml.lint.lint import problem_json
    from airflow_provider_opal.templates.yaml.lint.page import page, render

    dags, problems = render(args.path)
    if args.json:
        report = {"dags": dags, "problems": [problem_json(problem) for problem in problems]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print(*page(dags), sep="\n", end="")
        print(*problems, sep="\n", file=sys.stderr)
    return FINDINGS if problems else OK


def schema_action(_: argparse.Namespace) -> int:
    _need_airflow()
    from airflow_provider_opal.templates.yaml.schema import schema_text

    sys.stdout.write(schema_text())
    return OK


def new_action(args: argparse.Namespace) -> int:
    _need_airflow()
    from airflow_provider_opal.templates.yaml.starter import write_starter

    for path in write_starter(args.name, args.folder):
        print(path)
    return OK


def _default_path() -> Path:
    folder = Path(_FOLDER)
    return folder if folder.is_dir() else Path()


def _need_airflow() -> None:
    # Airflow would log the problems of a DAG file too; lint prints them in its own words
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "CRITICAL")
    if find_spec("airflow") is None:
        raise InvalidInputError(
            "opal dag checks the rules of Airflow, and Airflow is not installed here: "
            "pip install airflow-provider-opal"
        )
