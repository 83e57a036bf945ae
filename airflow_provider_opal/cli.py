"""`opal dag`: lint, render, schema and new, for the YAML files that DAGs are made from. Airflow is loaded when one of them runs."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from opal_lake.cli.command import OpalParser, Verbs, exit_code_lines
from opal_lake.cli.render import Style
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.exit_codes import FINDINGS, OK, RETRY

GROUP = "Pipelines of Airflow in YAML"
_FOLDER = "dags"


def commands(verbs: Verbs) -> None:
    """Register the verb (an `opal.commands` entry point)."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "dag",
        help="pipelines in YAML: check, show, begin",
        description="Check, show and begin pipelines of Airflow that are written in YAML.",
        epilog=exit_code_lines(),
    )
    parser.set_defaults(
        group=GROUP, example="opal dag lint dags", run=_usage(parser), traceback=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=OpalParser)
    _add_lint(actions)
    _add_render(actions)
    schema = _add(
        actions, "schema", "print the JSON schema of the files, for editors", schema_action
    )
    schema.epilog = "example:\n  opal dag schema > dags/opal-v1.schema.json"
    new = _add(actions, "new", "write a file to begin with; never overwrites one", new_action)
    new.add_argument("name", metavar="NAME", help="of the pipeline, as orders")
    new.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where to write it (default: here)",
    )
    new.epilog = "example:\n  opal dag new orders --folder dags"


def _add_lint(actions: Verbs) -> None:
    lint = _add(actions, "lint", "find what is wrong in the files, and between them", lint_action)
    lint.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="PATH",
        help=f"a file or a folder (default: {_FOLDER} if it is there, else here)",
    )
    lint.add_argument(
        "--lake",
        action="store_true",
        help="compare with the tables themselves, through Airflow's connections",
    )
    lint.add_argument(
        "--json", action="store_true", help="for programs: nothing but JSON on standard output"
    )
    lint.epilog = f"example:\n  opal dag lint dags --lake\n\n{exit_code_lines()}"


def _add_render(actions: Verbs) -> None:
    render = _add(
        actions, "render", "show the DAGs, tasks, schedules and assets that come out", render_action
    )
    render.add_argument("path", type=Path, metavar="PATH", help="a file or a folder")
    render.add_argument(
        "--json", action="store_true", help="for programs: nothing but JSON on standard output"
    )
    render.epilog = "example:\n  opal dag render dags/shop.opal.yaml"


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
        help="show where an error comes from; also by OPAL_TRACEBACK=1",
    )
    return parser


def _usage(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return OK

    return show


def lint_action(args: argparse.Namespace) -> int:
    _need_airflow()
    from airflow_provider_opal.templates.yaml.lint.lint import lint

    report = lint(args.path or _default_path(), lake=args.lake)
    if args.json:
        print(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        style = Style.of(sys.stdout)
        for problem in report.problems:
            print(style.warn(f"warning: {problem}") if problem.kind == "warning" else str(problem))
        errors = len(report.of_kind("error", "unreachable"))
        seen = (
            f"{count_text(report.files, 'file')}, {count_text(report.pipelines, 'sound pipeline')}"
        )
        print(
            style.bad(f"{seen}, {count_text(errors, 'problem')}")
            if errors
            else style.good(f"{seen}, nothing is wrong")
        )
    if report.of_kind("error"):
        return FINDINGS
    return RETRY if report.of_kind("unreachable") else OK


def render_action(args: argparse.Namespace) -> int:
    _need_airflow()
    from airflow_provider_opal.templates.yaml.lint.lint import problem_json
    from airflow_provider_opal.templates.yaml.lint.page import page, render

    dags, problems = render(args.path)
    if args.json:
        print(
            json.dumps(
                {"dags": dags, "problems": [problem_json(problem) for problem in problems]},
                indent=2,
                ensure_ascii=False,
            )
        )
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
    return Path(_FOLDER) if Path(_FOLDER).is_dir() else Path()


def _need_airflow() -> None:
    os.environ.setdefault(
        "AIRFLOW__LOGGING__LOGGING_LEVEL", "CRITICAL"
    )  # what Airflow says of a DAG file is told in its own words
    if find_spec("airflow") is None:
        raise InvalidInputError(
            "Airflow is not installed here, and its rules are what is checked; pip install airflow-provider-opal"
        )
