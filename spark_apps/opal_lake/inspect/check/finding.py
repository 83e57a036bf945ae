"""Findings of a check, which goes on after the first damage."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opal_lake.errors import ForeignPathError, FormatError, InvalidInputError, NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A broken invariant of FORMAT.md, and the file that breaks it."""

    invariant: str
    path: str
    message: str


@dataclass(slots=True)
class Findings:
    """All findings so far, each once."""

    unique: dict[Finding, None] = field(default_factory=dict)

    def add(self, invariant: str, path: str, message: str) -> None:
        """Add a finding, unless it is known."""
        self.unique[Finding(invariant=invariant, path=path, message=message)] = None

    def expect(self, holds: bool, invariant: str, path: str, message: str) -> bool:
        """Add a finding unless the invariant holds; return whether it holds."""
        if not holds:
            self.add(invariant, path, message)
        return holds

    @contextmanager
    def going_on(self, invariant: str, path: str) -> Iterator[None]:
        """Turn an error about a file into a finding.

        An error of a store that does not answer is raised: it says nothing about the table.
        """
        try:
            yield
        except ForeignPathError as error:
            self.add("I23", path, str(error))
        except (FormatError, NotFoundError, InvalidInputError) as error:
            self.add(invariant, path, str(error))
