"""The lists of every checkpoint, and the lists that the commits add up to.

A log has a checkpoint for every few hundred commits, and each checkpoint names long lists. So a
commit is folded once for all checkpoints, and a section that many of them name is decoded once.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from opal_lake.data.segment import LogFile
from opal_lake.errors import ForeignPathError, FormatError, InvalidInputError, NotFoundError
from opal_lake.log.commit import Commit
from opal_lake.log.lists import LISTS, list_changes
from opal_lake.log.sections import Part, SectionRef, decode_items, decode_lines
from opal_lake.log.snapshot import Snapshot, extend_list

Changes = list[tuple[Hashable, Any]]
Lines = dict[bytes, tuple[Hashable, Any]]
# The changes of a section in order, the items that it adds, and the keys that it removes
DecodedSection = tuple[Changes, dict[Any, Any], list[Any]]
DAMAGE = (FormatError, ForeignPathError, InvalidInputError, NotFoundError)
_IN_ORDER = "tokens"  # the only list whose order counts


@dataclass(slots=True)
class FoldedLists:
    """The lists of the last folded state, which replace those of earlier states.

    `added_logs` are the logs that were added since the state before. None if logs may also have
    been removed.
    """

    state: Snapshot | None = None
    items: dict[str, dict[Any, Any]] = field(default_factory=dict)
    added_logs: list[LogFile] | None = None

    def fold(self, state: Snapshot) -> None:
        """Fold the lists of a state.

        A list that cannot be folded is left out: the check that needs the list reports it.
        """
        since = None
        if self.state is not None and self._leads_to(state):
            since = state.commits[len(self.state.commits) :]
        if since is None:
            self.items = {}
            self.added_logs = None
        else:
            self.added_logs = _added_logs(since, state)
        for name in LISTS:
            try:
                if since is None:
                    self.items[name] = state.load_list(name)
                elif name in self.items:
                    for commit in since:
                        changes = list_changes(name, state.storage, commit)
                        extend_list(self.items[name], changes)
            except DAMAGE:
                self.items.pop(name, None)
        self.state = state
        state.known_lists = dict(self.items)

    def _leads_to(self, state: Snapshot) -> bool:
        """Return whether the last state is an earlier version of this one."""
        if self.state is None or self.state.sections is not state.sections:
            return False
        count = len(self.state.commits)
        if count == 0:
            return True
        return state.commits[count - 1 : count] == self.state.commits[-1:]


def _added_logs(commits: Iterable[Commit], state: Snapshot) -> list[LogFile] | None:
    """Return the logs that commits add, None if they also remove or restore some."""
    added = []
    for commit in commits:
        if commit.actions.restored is not None:
            return None
        for _, log in list_changes("logs", state.storage, commit):
            if log is None:
                return None
            added.append(log)
    return added


@dataclass(slots=True)
class StoredLists:
    """Decoded sections and lines, most of which the next checkpoint has again."""

    decoded: dict[tuple[str, str], DecodedSection] = field(default_factory=dict)
    lines: dict[str, Lines] = field(default_factory=dict)

    def load(self, checkpoint: Snapshot, expected: FoldedLists) -> None:
        """Load the lists of a checkpoint.

        A damaged list is left out: the check that needs the list reports it.
        """
        used: dict[tuple[str, str], DecodedSection] = {}
        for name in LISTS:
            items: dict[Any, Any] = {}
            try:
                for part in checkpoint.sections.get(name, ()):
                    _apply(items, name, *self._section(checkpoint, name, part, expected, used))
            except DAMAGE:
                continue
            checkpoint.known_lists[name] = items
        self.decoded = used

    def _section(
        self,
        checkpoint: Snapshot,
        name: str,
        part: Part,
        expected: FoldedLists,
        used: dict[tuple[str, str], DecodedSection],
    ) -> DecodedSection:
        """Return a decoded section; those in files are remembered in `used`."""
        lines = self.lines.setdefault(name, {})
        expected_items = expected.items.get(name, {})
        if not isinstance(part, SectionRef):
            return _decoded(checkpoint, name, part, expected_items, lines)
        key = (name, part.path)
        section = self.decoded.get(key)
        if section is None:
            section = _decoded(checkpoint, name, part, expected_items, lines)
        used[key] = section
        return section


def _decoded(
    checkpoint: Snapshot, name: str, part: Part, expected: dict[Any, Any], lines: Lines
) -> DecodedSection:
    """Decode a section.

    An item that equals the expected one is that same object, so that a comparison costs nothing.
    """
    added: dict[Any, Any] = {}
    gone: list[Any] = []
    data, path = checkpoint.part_bytes(part)
    section = decode_lines(data, path)
    unknown = [line for line in section if line not in lines]
    read = decode_items(unknown, path, LISTS[name].change_from_json) if unknown else []
    for line, (key, value) in zip(unknown, read, strict=True):
        expected_value = expected.get(key)
        if expected_value == value:
            value = expected_value
        lines[line] = (key, value)
    changes = [lines[line] for line in section]
    if name == _IN_ORDER:
        return changes, {}, []
    for key, value in changes:
        if value is None:
            added.pop(key, None)
            gone.append(key)
        else:
            added[key] = value
    return [], added, gone


def _apply(
    items: dict[Any, Any], name: str, changes: Changes, added: dict[Any, Any], gone: list[Any]
) -> None:
    if name == _IN_ORDER:
        extend_list(items, changes)
        return
    for key in gone:
        items.pop(key, None)
    items.update(added)
