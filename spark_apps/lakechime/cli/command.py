"""The common part of all verbs: the database or service, `--json`, exit codes and help."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lakechime.errors import (
    AccessError,
    ConflictError,
    InvalidEventError,
    LakeChimeError,
    NotFoundError,
    SchemaError,
)
from lakechime.event import DEFAULT_CLUSTER
from lakechime.location import URL_VARIABLE, default_url
from opal_lake import __version__
from opal_lake.cli.command import (
    Verb,
    Verbs,
    add_everywhere,
    begin_verb,
    pairs,
    traceback_help,
)
from opal_lake.cli.help_page import exit_lines, verb_lines
from opal_lake.cli.render import Style
from opal_lake.clock import EPOCH, parse_moment_ms
from opal_lake.errors import InvalidInputError, OpalError
from opal_lake.exit_codes import BUG, FINDINGS, INPUT, OK, RETRY, STOPPED
from opal_lake.exit_codes import exit_code as opal_exit_code

if TYPE_CHECKING:
    from lakechime.client import LakeChime

EVENTS, KEEP, SERVE = "Events", "Keep the database", "Serve others"
GROUPS = (EVENTS, SERVE, KEEP)
TOKEN_VARIABLE = "LAKECHIME_TOKEN"
DATABASE_FORMS = (
    "sqlite:////path/to/lakechime.db, postgresql+psycopg2://user@host/database, "
    "or a service's http://host:8765"
)
_SHOWN_CHARS = 80

MEANINGS = {
    OK: "done",
    FINDINGS: "some tables could not be read: standard error names them",
    INPUT: (
        "wrong input, access refused, or a name that does not exist: the same command fails again"
    ),
    RETRY: (
        "the database or the service is away or busy, or another process was faster: try again"
    ),
    BUG: "a bug in this program",
    STOPPED: "stopped by Ctrl-C: registered events stay, run the same command again",
}


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that failed with this error."""
    if isinstance(error, OpalError):
        return opal_exit_code(error)
    if isinstance(error, InvalidEventError | NotFoundError | AccessError | SchemaError):
        return INPUT
    if isinstance(error, ConflictError | LakeChimeError):
        return RETRY
    return BUG


def add_verb(verbs: Verbs, verb: Verb) -> argparse.ArgumentParser:
    """Register a verb; the caller adds its own options."""
    parser = begin_verb(verbs, verb, MEANINGS)
    add_shared(parser)
    return parser


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the options of every verb."""
    add_everywhere(parser, "lakechime").add_argument(
        "--database",
        metavar="URL",
        help=f"{DATABASE_FORMS} (default: ${URL_VARIABLE}, else lakechime.db in $AIRFLOW_HOME). "
        f"Other users can see a command's arguments: put a URL with a password into "
        f"${URL_VARIABLE}, and the token of a service into ${TOKEN_VARIABLE}",
    )


def database_url(args: argparse.Namespace) -> str:
    return args.database or default_url()


def is_service(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def own_token(url: str) -> str | None:
    """Return the environment's token for a service, or None for a database."""
    if not is_service(url):
        return None
    return os.environ.get(TOKEN_VARIABLE) or None


def open_client(args: argparse.Namespace) -> "LakeChime":
    """Return a client of the options' database or service, which the caller closes."""
    from lakechime.client import LakeChime

    url = database_url(args)
    return LakeChime.open(url, token=own_token(url))


def show(args: argparse.Namespace, value: Any, page: Callable[[Style], Iterable[str]]) -> None:
    """Print JSON for programs, or a page for people."""
    if args.json:
        print(json.dumps(value, indent=2, ensure_ascii=False))
        return
    for line in page(Style.of(sys.stdout)):
        print(line)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        default=DEFAULT_CLUSTER,
        help="the cluster of the table (default: %(default)s)",
    )


def add_partition(parser: argparse.ArgumentParser) -> None:
    """Add the two options for a partition: a text for each level, or JSON."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--partition",
        action="append",
        metavar="TEXT",
        help="a level of the partition, as text; repeat it for each level",
    )
    group.add_argument(
        "--partition-json",
        metavar="LIST",
        help="the whole partition as JSON, if a level is not a text: '[\"NL\", 7]'",
    )


def partition_of(args: argparse.Namespace) -> tuple[Any, ...] | None:
    """Return the partition that the options name, or None without them."""
    if args.partition is not None:
        return tuple(args.partition)
    if args.partition_json is None:
        return None
    shown = args.partition_json[:_SHOWN_CHARS]
    try:
        value = json.loads(args.partition_json)
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(
            f"--partition-json {shown!r} is not JSON ({error}); write for example '[\"NL\", 7]'"
        ) from error
    if not isinstance(value, list):
        raise InvalidEventError(
            f"--partition-json {shown!r} is not a list; "
            "write one value for each level, such as '[\"NL\", 7]'"
        )
    return tuple(value)


def add_tags(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE", help=help_text)


def tags_of(args: argparse.Namespace) -> dict[str, str]:
    return pairs(args.tag, "--tag")


def moment_ms(text: str) -> int:
    """Return a time argument in milliseconds since 1970.

    The argument is such a number, or ISO 8601; without a zone it is in UTC.
    """
    try:
        return parse_moment_ms(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment_text(moment: int) -> str:
    """Return a time in UTC, or the number for a year that Python cannot represent."""
    try:
        return (EPOCH + timedelta(milliseconds=moment)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return str(moment)


def overview(verbs: Mapping[str, argparse.ArgumentParser], style: Style) -> str:
    """Return the page that `lakechime` and `lakechime --help` show."""
    return "\n".join([*_head(style), *verb_lines(verbs, GROUPS, style), *_foot(style)])


def _head(style: Style) -> Iterator[str]:
    yield (
        f"{style.strong('lakechime')} {__version__}: "
        "the changes of a lake's tables, and the progress of their consumers"
    )
    yield ""
    yield (
        f"{style.strong('usage:')} lakechime COMMAND [options]      "
        f"{style.faint('lakechime COMMAND --help shows the options')}"
    )


def _foot(style: Style) -> Iterator[str]:
    yield ""
    yield style.strong("Everywhere")
    yield f"  --database URL  {DATABASE_FORMS}"
    yield (
        f"                  (default: ${URL_VARIABLE}, else lakechime.db in $AIRFLOW_HOME; "
        f"the token of a service is in ${TOKEN_VARIABLE})"
    )
    yield "  --json          print nothing but JSON on standard output, for programs"
    yield f"  --traceback     {traceback_help('lakechime')}"
    yield "  --version       print the version of this program"
    yield from exit_lines(style, MEANINGS)
