"""The verb `lakechime serve`, which runs the service in its own process."""

import argparse
import sys
from pathlib import Path

from lakechime.cli.command import SERVE, add_verb, database_url, is_service
from lakechime.errors import InvalidEventError
from opal_lake.cli.command import Verb, Verbs, whole_number

HOST, PORT = "127.0.0.1", 8765


def commands(verbs: Verbs) -> None:
    """Register the verb."""
    summary, example = (
        "serve events over HTTP to clients that have a token",
        "lakechime serve --port 8765",
    )
    parser = add_verb(
        verbs, Verb(name="serve", group=SERVE, summary=summary, example=example, run=serve)
    )
    parser.add_argument(
        "--host",
        default=HOST,
        metavar="ADDRESS",
        help="the address to listen on; 0.0.0.0 is every address (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=whole_number,
        default=PORT,
        metavar="N",
        help="the port to listen on (default: %(default)s)",
    )
    parser.add_argument(
        "--no-auth",
        action="store_true",
        help="require no token: for a trial, and only on an address such as 127.0.0.1",
    )
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="serve HTTPS with this certificate, in PEM"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="the certificate's private key, in PEM"
    )


def serve(args: argparse.Namespace) -> None:
    from lakechime.service.server import Listener, run_server

    url = database_url(args)
    if is_service(url):
        raise InvalidEventError(f"{url} is a service; name the database to serve by --database")
    if (args.certificate is None) != (args.key is None):
        raise InvalidEventError("HTTPS needs both --certificate and --key; give both, or neither")
    listener = Listener(host=args.host, port=args.port, certificate=args.certificate, key=args.key)
    run_server(
        url,
        listener,
        with_tokens=not args.no_auth,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
