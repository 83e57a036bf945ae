"""The lists of every checkpoint, and those that the commits add up to.

A log has as many checkpoints as it has hundreds of commits, or more, and each names long lists. So
a commit is folded once for all of them, and a section that many checkpoints name is decoded once.
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
DAMAGE = (FormatError, ForeignPathError, InvalidInputError, NotFoundError)
_IN_ORDER = "tokens"  # the only list whose order counts


@dataclass(slots=True)
class FoldedLists:
    """The lists of the newest state that was folded; those of states before it are used up.

    `added_logs` are those that came since the state before, None where others may have gone.
    """

    state: Snapshot | None = None
    items: dict[str, dict[Any, Any]] = field(default_factory=dict)
    added_logs: list[LogFile] | None = None

    def fold(self, state: Snapshot) -> None:
        """Make the lists of a state known. One that cannot be is left to whoever asks for it."""
        since = None
        if self.state is not None and self._leads_to(state):
            since = state.commits[len(self.state.commits) :]
        if since is None:
            self.items = {}
        self.added_logs = None if since is None else _added_logs(since, state)
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
        """Whether the last state is an earlier version of this one."""
        if self.state is None or self.state.sections is not state.sections:
            return False
        count = len(self.state.commits)
        return count == 0 or state.commits[count - 1 : count] == self.state.commits[-1:]


def _added_logs(commits: Iterable[Commit], state: Snapshot) -> list[LogFile] | None:
    """Return the logs that commits add, None where they take some away or bring old ones back."""
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
    """Sections and their lines, decoded: the next checkpoint has most of them again."""

    decoded: dict[tuple[str, str], tuple[Changes, dict[Any, Any], list[Any]]] = field(
        default_factory=dict
    )
    lines: dict[str, Lines] = field(default_factory=dict)

    def load(self, checkpoint: Snapshot, expected: FoldedLists) -> None:
        """Make the lists of a checkpoint known. One that is damaged is left to whoever asks for it."""
        used: dict[tuple[str, str], tuple[Changes, dict[Any, Any], list[Any]]] = {}
        for name in LISTS:
            items: dict[Any, Any] = {}
            lines = self.lines.setdefault(name, {})
            try:
                for part in checkpoint.sections.get(name, ()):
                    key = (name, part.path) if isinstance(part, SectionRef) else None
                    changes = self.decoded.get(key) if key else None
                    if changes is None:
                        changes = _decoded(
                            checkpoint, name, part, expected.items.get(name, {}), lines
                        )
                    if key:
                        used[key] = changes
                    _apply(items, name, *changes)
            except DAMAGE:
                continue
            checkpoint.known_lists[name] = items
        self.decoded = used


def _decoded(
    checkpoint: Snapshot, name: str, part: Part, expected: dict[Any, Any], lines: Lines
) -> tuple[Changes, dict[Any, Any], list[Any]]:
    """The changes of a section in order; which items it leaves, and which keys it takes away.

    An item that is as expected is the expected object itself, which compares in no time.
    """
    added: dict[Any, Any] = {}
    gone: list[Any] = []
    data, path = checkpoint.part_bytes(part)
    section = decode_lines(data, path)
    unknown = [line for line in section if line not in lines]
    read = decode_items(unknown, path, LISTS[name].change_from_json) if unknown else []
    for line, (key, value) in zip(unknown, read, strict=True):
        own = expected.get(key)
        lines[line] = (key, own if own == value else value)
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
