"""Functions of the consumers of the cluster's tests: each call writes a file of its arguments."""

import json
import uuid
from pathlib import Path

from opal_spark import Change


def copy(change: Change) -> dict[str, int]:
    rows = sorted((row["id"], row["name"]) for row in change.valid_rows.collect())
    _note(change, "copy", {"key": change.partition_key, "version": change.version, "rows": rows})
    return {"rows": len(rows)}


def follow(change: Change) -> dict[str, int]:
    rows = sorted(row["id"] for row in change.rows.collect())
    _note(
        change,
        f"follow-{Path(change.table.uri).name}",
        {"from": change.after, "to": change.version, "ids": rows},
    )
    return {"rows": len(rows)}


def _note(change: Change, name: str, what: dict[str, object]) -> None:
    folder = Path(change.arguments["to"])
    (folder / f"{name}-{uuid.uuid4().hex}.json").write_text(json.dumps(what))
