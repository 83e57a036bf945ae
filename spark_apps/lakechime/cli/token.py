"""The verb `lakechime token`, which creates, lists and revokes tokens."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakechime.access import MEANINGS, ROLES, Token, TokenKeeper, token_json
from lakechime.cli.command import MEANINGS as EXIT_CODES
from lakechime.cli.command import (
    SERVE,
    add_shared,
    database_url,
    is_service,
    moment_text,
    own_token,
    show,
)
from opal_lake.cli.command import OpalParser, Verbs, exit_code_lines
from opal_lake.cli.render import Column, Style, escaped, output_width, text_table
from opal_lake.exit_codes import OK

if TYPE_CHECKING:
    from collections.abc import Callable


def commands(verbs: Verbs) -> None:
    """Register the verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "token",
        help="create, list and revoke the tokens of the service",
        description="Create, list and revoke the tokens of the service.",
        epilog=exit_code_lines(EXIT_CODES),
    )
    parser.set_defaults(
        group=SERVE,
        example="lakechime token create etl --role write",
        run=_usage(parser),
        traceback=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=OpalParser)
    creator = _add(actions, "create", "create a token, and print it this one time", create)
    creator.add_argument(
        "name", metavar="NAME", help="a name of the token's user; each name is used once"
    )
    creator.add_argument(
        "--role",
        required=True,
        choices=ROLES,
        help="; ".join(f"{role}: {meaning}" for role, meaning in MEANINGS.items()),
    )
    creator.epilog = "example:\n  lakechime token create etl --role write"
    lister = _add(actions, "list", "list the tokens, without their secrets", list_tokens)
    lister.epilog = "example:\n  lakechime token list"
    revoker = _add(actions, "revoke", "revoke a token; the service refuses it from then on", revoke)
    revoker.add_argument("name", metavar="NAME", help="the name that `lakechime token list` shows")
    revoker.epilog = "example:\n  lakechime token revoke etl"


def _add(
    actions: Verbs, name: str, summary: str, run: "Callable[[argparse.Namespace], None]"
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=summary[:1].upper() + summary[1:] + "."
    )
    parser.set_defaults(run=run)
    add_shared(parser)
    return parser


def _usage(parser: argparse.ArgumentParser) -> "Callable[[argparse.Namespace], int]":
    def show_help(_: argparse.Namespace) -> int:
        parser.print_help()
        return OK

    return show_help


@contextmanager
def _keeper(args: argparse.Namespace) -> Iterator[TokenKeeper]:
    """Yield the tokens of the database, or of the service."""
    url = database_url(args)
    if is_service(url):
        from lakechime.remote.http import HttpTokens
        from lakechime.remote.transport import Transport

        transport = Transport(url=url, token=own_token(url))
        try:
            yield HttpTokens(transport=transport)
        finally:
            transport.close()
        return
    from lakechime.store.sql_store import SqlStore
    from lakechime.store.sql_tokens import SqlTokens

    store = SqlStore.open(url)
    try:
        yield SqlTokens.of(store)
    finally:
        store.close()


def create(args: argparse.Namespace) -> None:
    with _keeper(args) as keeper:
        secret = keeper.create(args.name, args.role)
    if not args.json:
        # On standard error, so that standard output holds the secret alone
        print(
            f"token {escaped(args.name)} with the role {args.role}, which is not shown again:",
            file=sys.stderr,
        )
    show(args, {"name": args.name, "role": args.role, "token": secret}, lambda style: [secret])


def list_tokens(args: argparse.Namespace) -> None:
    with _keeper(args) as keeper:
        tokens = keeper.tokens()
    show(args, [token_json(token) for token in tokens], lambda style: _page(tokens, style))


def _page(tokens: Sequence[Token], style: Style) -> Iterator[str]:
    if not tokens:
        yield style.faint("no token yet; create one: lakechime token create NAME --role read")
        return
    columns = [
        Column(key="name", title="name", show=escaped, shrinks=True),
        Column(key="role", title="role"),
        Column(key="created", title="created", show=_when),
        Column(key="last_used", title="last used", show=_when, optional=True),
        Column(key="revoked", title="revoked", show=_when),
    ]
    rows = [token_json(token) for token in tokens]
    yield from text_table(columns, rows, style, output_width(sys.stdout))


def _when(moment: int | None) -> str:
    return "-" if moment is None else moment_text(moment)


def revoke(args: argparse.Namespace) -> None:
    with _keeper(args) as keeper:
        keeper.revoke(args.name)
    show(
        args,
        {"revoked": args.name},
        lambda style: [f"{style.good('revoked')}: {escaped(args.name)}"],
    )
