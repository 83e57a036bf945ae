"""What a commit says that restores an older version: how the long lists differ, and the sums of the root (FORMAT, restore)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opal_lake import checked
from opal_lake.data.segment import SideFile, side_from_json, side_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The older version, what `side` lists of the files, segments, logs and runs that came back and went, and their sums from now on."""

    version: int
    side: SideFile
    groups: Mapping[int, int]
    rows: int
    pending: int
    events: int
    incomplete_ingests: tuple[int, ...] = ()


def restored_to_json(restored: Restored) -> dict[str, Any]:
    thinned = {"thinned": list(restored.incomplete_ingests)} if restored.incomplete_ingests else {}
    return thinned | {
        "version": restored.version,
        "side": side_to_json(restored.side),
        "groups": [list(pair) for pair in sorted(restored.groups.items())],
        "totals": [restored.rows, restored.pending, restored.events],
    }


def restored_from_json(data: Mapping[str, Any]) -> Restored:
    rows, pending, events = map(checked.count, data["totals"])
    return Restored(
        version=checked.count(data["version"]),
        side=side_from_json(data["side"]),
        groups={checked.count(group): checked.count(held) for group, held in data["groups"]},
        rows=rows,
        pending=pending,
        events=events,
        incomplete_ingests=checked.counts(data.get("thinned", ())),
    )
