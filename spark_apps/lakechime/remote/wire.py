"""Requests and answers as JSON. Members that a newer service adds are ignored."""

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


def filter_json(wanted: Filter) -> dict[str, Any]:
    return _conditions(wanted.tables, wanted.partition, wanted.tags)


def interest_json(interest: Interest) -> dict[str, Any]:
    conditions = _conditions(interest.tables, interest.partition, interest.tags)
    return {**conditions, "after": interest.after}


def _conditions(
    tables: tuple[TableName, ...], partition: Any, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Return the conditions of a filter as JSON; absent conditions are left out."""
    conditions: dict[str, Any] = {"tables": [table_json(table) for table in tables]}
    if partition is not None:
        conditions["partition"] = list(partition)
    if tags:
        conditions["tags"] = dict(tags)
    return conditions


def table_json(table: TableName) -> dict[str, str]:
    if isinstance(table, str):
        return {"cluster": DEFAULT_CLUSTER, "table": table}
    cluster, name = table
    return {"cluster": cluster, "table": name}


def outbox_json(outbox: Outbox) -> dict[str, Any]:
    body = {
        "cluster": outbox.cluster,
        "table": outbox.table,
        "position": outbox.position,
        "expected": outbox.expected,
    }
    if outbox.seen:
        body["seen"] = dict(outbox.seen)
    return body


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


def found_json(answer: Found) -> dict[str, Any]:
    return {"seqs": list(answer.seqs), "head": answer.head}


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
