"""`opal check --spark`: the check as a Spark job, an option of the verb that needs none."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from opal_lake.cli.command import Verbs
from opal_lake.cli.look import check, show_check
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.look import Check
from opal_lake.result import JobResult

Run = Callable[[argparse.Namespace, list[JobSpec[Any]]], list[JobResult]]


def add_check(verbs: Verbs, run: Run, add_spark: Callable[[argparse.ArgumentParser], Any]) -> None:
    """Add the option to the verb, if its plugin is there."""
    parser = verbs.choices.get("check")
    if parser is None:
        return
    add_spark(parser).add_argument(
        "--spark", action="store_true", help="look at the rows of a large table by Spark's tasks"
    )
    parser.set_defaults(run=lambda args: _run(args, run) if args.spark else check(args))


def _run(args: argparse.Namespace, run: Run) -> int:
    from opal_lake.inspect.check.check import LEFT_OUT, LOOKED_AT, Checked
    from opal_lake.inspect.check.finding import Finding

    started_s = time.monotonic()
    result = run(args, [JobSpec(operation=Check(**Check.among(vars(args))), table=args.table)])[0]
    findings = tuple(Finding(**finding) for finding in result.examples)
    left_out = tuple(
        note.removeprefix(LEFT_OUT) for note in result.notes if note.startswith(LEFT_OUT)
    )
    looked_at = "".join(
        note.removeprefix(LOOKED_AT) for note in result.notes if note.startswith(LOOKED_AT)
    )
    checked = Checked(findings=findings, left_out=left_out)
    return show_check(args, result.table, checked, looked_at, time.monotonic() - started_s)
