"""`opal mutate`: files merged into a folder of files, by flags or by a properties file."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opal_folder.properties import arguments_of, parse_properties
from opal_lake.cli.command import BRING, Verb, Verbs, add_command, pairs, store_options
from opal_lake.cli.flags import add_flags, add_token, operation_of
from opal_lake.errors import InvalidInputError, OpalError
from opal_lake.operations.mutate import Mutate
from opal_lake.s3a import is_s3

RunOne = Callable[[argparse.Namespace, Mutate], None]
_FORMS = ("format", "increment_format", "output_format", "delimiter", "schema")
_SMALL_BYTES = 64 << 20
# In a short run, the JVM's second compiler takes longer than its better code saves
_BRIEF_JVM = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1"
_OPTIONS = {
    "options": "--csv-option",
    "increment_options": "--increment-option",
    "output_options": "--output-option",
}
_FILES_OF_OPTIONS = {
    "options": "the master's files",
    "increment_options": "the increments",
    "output_options": "the new master",
}


class _Default(str):
    """A default value, which can be distinguished from the same value of a flag."""

    __slots__ = ()


def add_mutate(verbs: Verbs, run_one: RunOne) -> argparse.ArgumentParser:
    """Register the verb `mutate`; `run_one` runs an operation and shows its result."""
    summary = "merge files of inserts, updates and deletes into a folder of files, without a table"
    example = (
        "opal mutate product/master product/incr --id product_id --order updated_at "
        "--order-type timestamp"
    )
    verb = Verb(
        name="mutate",
        group=BRING,
        summary=summary,
        example=example,
        run=lambda args: _run(args, run_one),
        operands="INCREMENT... ",
    )
    parser = add_command(verbs, verb)
    parser.usage = str(parser.usage).replace("TABLE", "MASTER")
    actions = parser._actions  # noqa: SLF001  # argparse has no public way to list them
    master = next(action for action in actions if action.dest == "table")
    master.metavar = "MASTER"
    master.help = "the folder of files: a local path, file:///path or s3://bucket/path"
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="INCREMENT",
        help="files, folders or patterns; done files are moved to MASTER.mutate/done",
    )
    parser.add_argument(
        "--properties",
        metavar="FILE",
        help="a file with parameters of chombo's RecordSetBulkMutator; flags override them",
    )
    parser.add_argument(
        "--id",
        action="append",
        dest="ids",
        metavar="FIELD",
        help="a field of the record's id, by name or ordinal; repeat the flag for more fields",
    )
    add_flags(parser, Mutate, but=(*_FORMS, "fixed_partitions", "backups", "dry_run"))
    quarantine = "merge good rows and put bad ones aside (default: fail on a bad row)"
    parser.add_argument(
        "--quarantine",
        dest="on_bad_rows",
        action="store_const",
        const="quarantine",
        help=quarantine,
    )
    empty = "accept empty files (default: an error)"
    parser.add_argument(
        "--accept-empty", dest="on_empty", action="store_const", const="accept", help=empty
    )
    add_flags(parser, Mutate, "fixed_partitions", "backups", "dry_run")
    add_token(parser, "merges")
    files = parser.add_argument_group("files")
    add_flags(files, Mutate, *_FORMS)
    files.add_argument(
        "--no-header",
        dest="header",
        action="store_const",
        const=False,
        help="the files are CSV without a header",
    )
    for action in actions:
        if action.dest in Mutate.fields() and isinstance(action.default, str):
            action.default = _Default(action.default)
    for dest, flag in _OPTIONS.items():
        files.add_argument(
            flag,
            dest=dest,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"an option of Spark's CSV for {_FILES_OF_OPTIONS[dest]}, such as sep=;",
        )
    return parser


def _run(args: argparse.Namespace, run_one: RunOne) -> None:
    given = {dest: pairs(getattr(args, dest), flag) for dest, flag in _OPTIONS.items()}
    from_file = {} if args.properties is None else _read_properties(args.properties)
    for name, value in from_file.items():
        # A flag overrides the same parameter of the file
        of_flag = given[name] if name in _OPTIONS else getattr(args, name)
        if not _is_given(of_flag):
            given[name] = value
            setattr(args, name, value)
    if not args.ids:
        raise InvalidInputError(
            "opal mutate needs the fields of a record's id: give --id FIELD, or set "
            "id.field.ordinals in the file of --properties"
        )
    job = operation_of(args, Mutate, **{"increments": args.paths, **given})
    if _is_small(args, job):
        args.conf = [_BRIEF_JVM, *args.conf]
    run_one(args, job)


def _is_small(args: argparse.Namespace, job: Mutate) -> bool:
    """Return whether the files are so small that Spark's start takes longest.

    Raises InvalidInputError for local increments that the run would refuse. It raises no error for
    files on S3, for which Spark may have settings of its own, nor for files that cannot be read:
    the run itself reports these.
    """
    # Imported here since it imports Arrow, which `--help` does not need
    from opal_folder.mutation import bytes_of

    try:
        return bytes_of(args.table, job, store_options(args)) < _SMALL_BYTES
    except InvalidInputError:
        if not any(is_s3(path) for path in (args.table, *args.paths)):
            raise
        return False
    except OpalError:
        return False


def _is_given(value: object) -> bool:
    """Return whether the user gave the value of a flag."""
    return value not in (None, [], {}) and not isinstance(value, _Default)


def _read_properties(path: str) -> dict[str, Any]:
    """Return the arguments of Mutate that a properties file gives."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"--properties {path}: the file cannot be read ({error}); correct the path"
        ) from error
    arguments, unknown = arguments_of(parse_properties(text))
    if unknown:
        names = ", ".join(unknown)
        print(f"opal: mutate does not use these parameters of {path}: {names}", file=sys.stderr)
    return arguments
