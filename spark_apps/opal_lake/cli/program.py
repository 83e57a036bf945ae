"""How a program with verbs runs one of them: errors become one clear line and an exit code."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from opal_lake.cli.command import is_set
from opal_lake.cli.render import Style
from opal_lake.job.exit_codes import BUG, OK, STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command with verbs: its name, its exit codes, and what it says when Ctrl-C stops it."""

    name: str
    exit_code: Callable[[BaseException], int]
    when_stopped: str

    @property
    def traceback_variable(self) -> str:
        """The environment variable that asks for tracebacks."""
        return f"{self.name.upper()}_TRACEBACK"

    def run(self, args: argparse.Namespace) -> int:
        """The verb's exit code; an error becomes one clear line."""
        try:
            code = args.run(args)
            sys.stdout.flush()
        except BrokenPipeError:  # `opal files t | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        except KeyboardInterrupt:
            print(f"{self.name}: stopped; {self.when_stopped}", file=sys.stderr)
            return STOPPED
        except Exception as error:  # noqa: BLE001  # the last stop: every error becomes an exit code
            return self.report(error, traced=args.traceback)
        return OK if code is None else int(code)

    def report(self, error: Exception, *, traced: bool = False) -> int:
        """Say on standard error what went wrong; returns the exit code. Only bugs, and who asks for it, get a traceback."""
        code = self.exit_code(error)
        if code == BUG or traced or is_set(self.traceback_variable):
            traceback.print_exception(error)
        else:
            print(f"{Style.of(sys.stderr).bad(f'{self.name}:')} {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return code
