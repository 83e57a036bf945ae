"""Events as environment variables of the flow that they start.

LAKECHIME_EVENTS has the events as a JSON list. If the list is longer than the limit,
LAKECHIME_QUERY has a query that finds them instead: events are never cut off. The query has the
filter of the trigger. If no filter was given, it has the seqs of the events, so that it finds no
other events of the tables. LAKECHIME_EVENT_COUNT is always set, and LAKECHIME_FIRST_SEQ and
LAKECHIME_LAST_SEQ if there is an event.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakechime.answers import Interest
from lakechime.errors import InvalidEventError
from lakechime.event import DataChangeEvent, JsonValue
from lakechime.triggers.reader import Reader, read_all

EVENTS, QUERY = "LAKECHIME_EVENTS", "LAKECHIME_QUERY"
COUNT, FIRST_SEQ, LAST_SEQ = "LAKECHIME_EVENT_COUNT", "LAKECHIME_FIRST_SEQ", "LAKECHIME_LAST_SEQ"
# Linux limits one variable to twice that, and all of them to some megabytes
LIMIT_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The filter of the trigger that fired, which finds the events again."""

    partition: tuple[JsonValue, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def event_variables(
    events: Sequence[DataChangeEvent], *, query: Query | None = None, limit_bytes: int = LIMIT_BYTES
) -> dict[str, str]:
    """Return the variables of events that are in the order of their seqs.

    `query` has the partition and tags that found the events, or is None if these are unknown.
    """
    seqs = [event.seq for event in events if event.seq is not None]
    variables = {COUNT: str(len(events))}
    if seqs:
        variables[FIRST_SEQ] = str(min(seqs))
        variables[LAST_SEQ] = str(max(seqs))
    # ASCII text, so that a character is a byte
    text = json.dumps([event.to_json() for event in events], separators=(",", ":"))
    if len(text) <= limit_bytes:
        return {**variables, EVENTS: text}
    if len(seqs) < len(events):
        raise InvalidEventError(
            f"{len(events):,} events take {len(text):,} bytes, and a query for them would miss "
            f"the {len(events) - len(seqs):,} events without a seq; register them first"
        )
    query_text = _query_text(events, query, after=min(seqs) - 1, until=max(seqs))
    if len(query_text) > limit_bytes:
        raise InvalidEventError(
            f"the query that finds the events takes {len(query_text):,} bytes, and may take "
            f"{limit_bytes:,}; use a trigger of fewer tables"
        )
    return {**variables, QUERY: query_text}


def _query_text(
    events: Sequence[DataChangeEvent], query: Query | None, *, after: int, until: int
) -> str:
    members: dict[str, Any] = {
        "tables": sorted({(event.cluster, event.table) for event in events}),
        "after": after,
        "until": until,
    }
    if query is None:
        members["runs"] = _runs([event.seq or 0 for event in events], after)
        query = Query()
    if query.partition is not None:
        members["partition"] = list(query.partition)
    if query.tags:
        members["tags"] = dict(query.tags)
    return json.dumps(members, separators=(",", ":"))


def _runs(seqs: Sequence[int], after: int) -> list[int]:
    """Return seqs in a short form: lengths of gaps and runs by turns.

    The first length is that of the gap after `after`. With after=3, the seqs 5, 6 and 9 are
    [0, 0, 1, 2, 2, 1].
    """
    runs = [0, 0]
    last = after
    for seq in sorted(set(seqs)):
        if seq > last + 1:
            runs += [seq - last - 1, 0]
        runs[-1] += 1
        last = seq
    return runs


def _seqs_of_runs(runs: Sequence[int], after: int) -> set[int]:
    """Return the seqs that `_runs` encoded."""
    seqs: set[int] = set()
    last = after
    for gap, length in zip(runs[::2], runs[1::2], strict=True):
        first = last + gap + 1
        seqs.update(range(first, first + length))
        last = first + length - 1
    return seqs


def read_variables(
    variables: Mapping[str, str], reader: Reader | None = None
) -> tuple[DataChangeEvent, ...]:
    """Return the events that started a flow.

    `reader` is a client. It is needed if the variables have a query instead of the events.
    """
    if EVENTS in variables:
        return tuple(DataChangeEvent.from_json(event) for event in json.loads(variables[EVENTS]))
    if QUERY not in variables:
        raise InvalidEventError(
            f"neither {EVENTS} nor {QUERY} is set; call this in a flow that a LakeChime trigger "
            "started"
        )
    if reader is None:
        raise InvalidEventError(
            f"{QUERY} has a query instead of the events, which were too many for a variable; "
            "pass a LakeChime client as reader="
        )
    events = _query_events(json.loads(variables[QUERY]), reader)
    if COUNT in variables:
        _check_count(len(events), int(variables[COUNT]))
    return events


def _query_events(members: Mapping[str, Any], reader: Reader) -> tuple[DataChangeEvent, ...]:
    interest = Interest(
        tables=tuple((cluster, table) for cluster, table in members["tables"]),
        partition=tuple(members["partition"]) if "partition" in members else None,
        tags=members.get("tags", {}),
        after=members["after"],
    )
    registered = read_all(reader, interest, members["until"])
    events = tuple(match.event for match in registered)
    if "runs" in members:
        seqs = _seqs_of_runs(members["runs"], members["after"])
        events = tuple(event for event in events if event.seq in seqs)
    return events


def _check_count(actual: int, expected: int) -> None:
    """Raise InvalidEventError unless a query found exactly the events of the flow."""
    if actual < expected:
        raise InvalidEventError(
            f"{QUERY} finds {actual:,} of the {expected:,} events that started this flow: "
            "retention deleted the others. Read the whole tables, and keep events longer"
        )
    if actual > expected:
        raise InvalidEventError(
            f"{QUERY} finds {actual:,} events, and {expected:,} started this flow: its filter is "
            "not the one of the trigger; pass the trigger's own filter as query=, or no filter"
        )
