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
from opal_lake.cli.command import (
    OpalParser,
    Verbs,
    is_set,
    traceback_variable,
    with_flags,
)
from opal_lake.cli.render import Style
from opal_lake.exit_codes import BUG, OK, RETRY, STOPPED

_ESCAPES = "opal.escapes"  # the name of our error handler among those of `codecs`
_NO_FLAGS: Mapping[str, str] = {}
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

        The command ends quietly when the reader of its output has left, as in
        `opal --help | head -1`.
        """
        _prepare_output()
        try:
            try:
                return self._main(argv)
            finally:
                sys.stdout.flush()  # also after a help page, which ends with SystemExit
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
        return self.run(args, parser.parser_of(words).value_flags())

    def build_parser(self) -> OpalParser:
        """Return the parser with all verbs."""
        parser = OpalParser(prog=self.name, add_help=False)
        parser.add_argument("-h", "--help", action=_Overview, nargs=0, page=self.overview)
        parser.add_argument("--version", action="version", version=f"{self.name} {__version__}")
        verbs = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=OpalParser)
        self.add_verbs(verbs)
        return parser

    def run(self, args: argparse.Namespace, flags: Mapping[str, str]) -> int:
        """Run a verb, and return its exit code; an error becomes one clear line.

        `flags` are the verb's flags by the arguments that they set: errors name the flags.
        """
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
            return self.report(error, flags, traced=args.traceback)
        return OK if code is None else int(code)

    def report(
        self, error: Exception, flags: Mapping[str, str] = _NO_FLAGS, *, traced: bool = False
    ) -> int:
        """Print an error to standard error, and return its exit code.

        The traceback is printed for a bug, and where `traced` or the environment asks for it.
        """
        code = self.exit_code(error)
        is_traced = code == BUG or traced or is_set(traceback_variable(self.name))
        # Where standard error cannot be written, the code has to be enough
        with suppress(OSError):
            if is_traced:
                traceback.print_exception(error)
            else:
                self._print_error(error, flags)
        return code

    def _print_error(self, error: Exception, flags: Mapping[str, str]) -> None:
        name = Style.of(sys.stderr).bad(f"{self.name}:")
        message = with_flags(str(error), flags, getattr(error, "arguments", ()))
        notes = getattr(error, "__notes__", ())
        print(f"{name} {message}", *notes, sep="\n", file=sys.stderr)

    def _report_output(self, error: OSError) -> int:
        """Print that the output is lost; return the exit code."""
        message = (
            f"{self.name}: the output or a temporary file could not be written ({error.strerror}); "
            "commits that were made stay: look at the table with another command"
        )
        with suppress(OSError):
            print(message, file=sys.stderr)
        return RETRY


def _is_of_output(error: Exception) -> bool:
    """Return whether an error came from writing to an open stream.

    An error of a file by its path has a file name, that of a stream has none.
    """
    if not isinstance(error, OSError):
        return False
    return error.errno in _OF_OUTPUT and error.filename is None


def _prepare_output() -> None:
    """Make standard output and standard error accept any text.

    Characters that the encoding of a stream lacks are escaped as in JSON.
    """
    codecs.register_error(_ESCAPES, _escape)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when the program began
            devnull = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the end
            setattr(sys, name, devnull)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return JSON escapes of the characters that an encoding lacks, and their end."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    quoted = json.dumps(lacking)
    return quoted[1:-1], error.end


def _discard_output() -> None:
    """Discard standard output from now on, so that no flush fails again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())


class _Overview(argparse.Action):
    """The option `--help` of the program: it prints the verbs by their groups.

    The help of argparse has no groups of verbs.
    """

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
