"""Questions and answers as JSON. What a newer service says beyond this is left alone."""

from collections.abc import Mapping
from typing import Any

from lakechime.answers import (
    Filter,
    Found,
    Interest,
    Outbox,
    Page,
    Registered,
    TableName,
    TableState,
    Watermark,
)
from lakechime.event import DEFAULT_CLUSTER

V1 = "/v1"


def filter_json(meant: Filter) -> dict[str, Any]:
    return _meant(meant.tables, meant.partition, meant.tags)


def interest_json(interest: Interest) -> dict[str, Any]:
    return {**_meant(interest.tables, interest.partition, interest.tags), "after": interest.after}


def _meant(
    tables: tuple[TableName, ...], partition: Any, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Without what is not asked for."""
    shown: dict[str, Any] = {"tables": [table_json(table) for table in tables]}
    if partition is not None:
        shown["partition"] = list(partition)
    return {**shown, "tags": dict(tags)} if tags else shown


def table_json(table: TableName) -> dict[str, str]:
    cluster, name = (DEFAULT_CLUSTER, table) if isinstance(table, str) else table
    return {"cluster": cluster, "table": name}


def outbox_json(outbox: Outbox) -> dict[str, Any]:
    body = {
        "cluster": outbox.cluster,
        "table": outbox.table,
        "position": outbox.position,
        "expected": outbox.expected,
    }
    return {**body, "seen": dict(outbox.seen)} if outbox.seen else body


def page_json(page: Page) -> dict[str, Any]:
    events = [registered.to_json() for registered in page.events]
    return {
        "events": events,
        "next_after": page.next_after,
        "more": page.more,
        "head": page.head,
        "expired": page.expired,
    }


def page_of(value: Mapping[str, Any]) -> Page:
    events = tuple(Registered.from_json(registered) for registered in value["events"])
    return Page(
        events=events,
        next_after=value["next_after"],
        more=value["more"],
        head=value["head"],
        expired=value["expired"],
    )


def found_json(found: Found) -> dict[str, Any]:
    return {"seqs": list(found.seqs), "head": found.head}


def found_of(value: Mapping[str, Any]) -> Found:
    return Found(seqs=tuple(value["seqs"]), head=value["head"])


def state_json(state: TableState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in TableState.__slots__}


def state_of(value: Mapping[str, Any]) -> TableState:
    return TableState(**{name: value[name] for name in TableState.__slots__})


def watermark_json(watermark: Watermark) -> dict[str, Any]:
    return {name: getattr(watermark, name) for name in Watermark.__slots__}


def watermark_of(value: Mapping[str, Any]) -> Watermark:
    return Watermark(**{name: value[name] for name in Watermark.__slots__})
