"""`opal explain`: the files that a read would open, and why it skips the others.

The command reads metadata only.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from opal_lake.cli.command import LOOK, Verb, Verbs, add_command, store_options, whole_number
from opal_lake.cli.render import (
    Column,
    Style,
    escaped,
    facts,
    output_width,
    plain_text,
    size_text,
    text_table,
)
from opal_lake.errors import count_text

# The counts of an explanation, with their names on the page
_SHOWN = {
    "read_whole": "read whole",
    "read_filtered": "read through the filter",
    "pruned_by_bounds": "skipped by the condition",
    "pruned_by_event_time": "skipped by event time",
    "pruned_as_dead": "skipped as dead",
    "pending": "pending",
}
_CONDITIONS = (
    Column(key="condition", title="condition", show=lambda text: escaped(str(text)), shrinks=True),
    Column(key="files", title="skips files", right=True),
    Column(key="bytes", title="size", show=size_text, right=True),
    Column(key="files_by_it_alone", title="by it alone", right=True),
)


def add_explain(verbs: Verbs) -> None:
    """Register the verb."""
    example = (
        "opal explain lake/orders --where \"customer_id = 7 AND created_at >= DATE '2026-11-01'\""
    )
    summary = "list the files that a read would open, and why it skips the others"
    parser = add_command(
        verbs, Verb(name="explain", group=LOOK, summary=summary, example=example, run=run)
    )
    parser.add_argument("--where", metavar="CONDITION", help="a condition on rows")
    parser.add_argument(
        "--version", type=whole_number, metavar="N", help="as of this version (default: the newest)"
    )
    parser.add_argument("--timestamp", metavar="TIME", help="as of this commit time")
    parser.add_argument(
        "--event-time",
        metavar="VALUE",
        help="rows valid at this time at the source, by the delta column",
    )


def run(args: argparse.Namespace) -> None:
    from opal_lake.read.explain import explain
    from opal_lake.read.read import event_time_of, file_filter
    from opal_lake.read.where import where_condition, where_predicate
    from opal_lake.table import Table

    table = Table.open(args.table, store_options(args))
    snapshot = table.snapshot_at(args.version, args.timestamp)
    predicate = where_predicate(where_condition(args.where, snapshot.spec))
    as_of = event_time_of(snapshot, args.event_time)
    explained = explain(file_filter(snapshot, as_of, predicate))
    if args.json:
        print(json.dumps(explained, indent=2, ensure_ascii=False))
        return
    for line in explain_page(explained, Style.of(sys.stdout), output_width(sys.stdout)):
        print(line)


def explain_page(explained: Mapping[str, Any], style: Style, width: int | None) -> Iterator[str]:
    """Yield the lines of `opal explain` for people."""
    files, sizes = explained["files"], explained["bytes"]
    total = _amount(files["total"], sizes["total"])
    yield style.strong(escaped(explained["uri"]))
    yield style.faint(f"version {explained['version']:,}, {total}")
    yield ""
    actions = []
    for name, text in _SHOWN.items():
        # Reads are shown also where no file is read, skips only where files are skipped
        if files[name] or name.startswith("read"):
            actions.append((text, _amount(files[name], sizes[name])))
    yield from facts(actions, style)
    if explained["conditions"]:
        yield ""
        yield from text_table(_CONDITIONS, explained["conditions"], style, width)
    yield ""
    yield from facts(list(_orders(explained["z_order"])), style)


def _amount(files: int, size: int) -> str:
    return f"{count_text(files, 'file')}, {size_text(size)}"


def _orders(z_order: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a value for each Z-order, then for the files without one."""
    for order in z_order["orders"]:
        amount = _amount(order["files"], order["bytes"])
        runs = count_text(order["runs"], "run")
        yield "Z-order", f"{plain_text(order['columns'])}: {amount} in {runs}"
    yield "in no Z-order", _amount(z_order["files_without"], z_order["bytes_without"])
