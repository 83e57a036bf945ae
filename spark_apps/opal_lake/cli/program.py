"""A program with verbs: errors become one clear line and an exit code."""

import argparse
import codecs
import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from opal_lake import __version__
from opal_lake.cli.command import OpalParser, Verbs, is_set, traceback_variable
from opal_lake.cli.render import Style
from opal_lake.exit_codes import BUG, OK, RETRY, STOPPED

_ESCAPES = "opal.escapes"
# Errors of writing to a stream: a closed one, a full disk or quota, a failed device
_OF_OUTPUT = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command with verbs: its name, its exit codes, its message after Ctrl-C.

    `add_verbs` registers the verbs; those of `opal` are the entry points `opal.commands`.
    `overview` is the page that shows them all.
    """

    name: str
    exit_code: Callable[[BaseException], int]
    when_stopped: str
    add_verbs: Callable[[Verbs], None]
    overview: Callable[[Mapping[str, argparse.ArgumentParser], Style], str]

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run one command, and return its exit code.

        Wrong usage raises SystemExit, as argparse does.

        It ends quietly when the reader of its output has left, as in `opal --help | head -1`.
        """
        _prepare_output()
        try:
            try:
                return self._main(argv)
            finally:
                sys.stdout.flush()  # also of a help page, which ends with SystemExit
        except BrokenPipeError:
            _discard_output()
            return OK
        except OSError as error:
            if not _is_of_output(error):
                raise
            _discard_output()
            return self._report_output(error)

    def _main(self, argv: Sequence[str] | None) -> int:
        words = sys.argv[1:] if argv is None else argv
        parser = self.build_parser()
        parser.check_command(words)
        args = parser.parse(words)
        if args.command is None:
            print(self.overview(parser.verbs(), Style.of(sys.stdout)))
            return OK
        return self.run(args)

    def build_parser(self) -> OpalParser:
        """Return the parser with all verbs."""
        parser = OpalParser(prog=self.name, add_help=False)
        parser.add_argument("-h", "--help", action=_Overview, nargs=0, page=self.overview)
        parser.add_argument("--version", action="version", version=f"{self.name} {__version__}")
        verbs = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=OpalParser)
        self.add_verbs(verbs)
        return parser

    def run(self, args: argparse.Namespace) -> int:
        """Run a verb, and return its exit code; an error becomes one clear line."""
        try:
            code = args.run(args)
            sys.stdout.flush()
        except BrokenPipeError:
            raise  # `main` ends quietly
        except KeyboardInterrupt:
            print(f"{self.name}: stopped; {self.when_stopped}", file=sys.stderr)
            return STOPPED
        except Exception as error:  # the last resort: every error becomes an exit code
            if _is_of_output(error):
                raise  # `main` reports it
            return self.report(error, traced=args.traceback)
        return OK if code is None else int(code)

    def report(self, error: Exception, *, traced: bool = False) -> int:
        """Print an error to standard error, and return its exit code.

        Only bugs, and whoever asks for it, get a traceback.
        """
        code = self.exit_code(error)
        # Where standard error cannot be written, the code has to be enough
        with suppress(OSError):
            self._print_error(error, code, traced=traced)
        return code

    def _print_error(self, error: Exception, code: int, *, traced: bool) -> None:
        if code == BUG or traced or is_set(traceback_variable(self.name)):
            traceback.print_exception(error)
            return
        name = Style.of(sys.stderr).bad(f"{self.name}:")
        notes = getattr(error, "__notes__", ())
        print(f"{name} {error}", *notes, sep="\n", file=sys.stderr)

    def _report_output(self, error: OSError) -> int:
        """Report that the output is lost, but not what the command did."""
        message = (
            f"{self.name}: the output or a temporary file could not be written ({error.strerror}); "
            "what was committed stays so: look at it with another command"
        )
        with suppress(OSError):
            print(message, file=sys.stderr)
        return RETRY


def _is_of_output(error: Exception) -> bool:
    """Return whether an error came from writing to an open stream.

    Other errors name a file.
    """
    return isinstance(error, OSError) and error.errno in _OF_OUTPUT and error.filename is None


def _prepare_output() -> None:
    """Make both streams take any text: characters they lack are escaped as in JSON."""
    codecs.register_error(_ESCAPES, _escape)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when the program began
            devnull = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the end
            setattr(sys, name, devnull)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Replace the characters that an encoding lacks by their escapes of JSON."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return json.dumps(lacking)[1:-1], error.end


def _discard_output() -> None:
    """Discard standard output from now on, so that no flush fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Overview(argparse.Action):
    """The option `--help`: all verbs by their groups, which argparse does not have."""

    def __init__(
        self,
        *,
        page: Callable[[Mapping[str, argparse.ArgumentParser], Style], str],
        **given: object,
    ) -> None:
        super().__init__(**given)  # type: ignore[arg-type]  # as argparse passes them
        self._page = page

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, OpalParser)
        print(self._page(parser.verbs(), Style.of(sys.stdout)))
        parser.exit()
