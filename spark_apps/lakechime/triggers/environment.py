"""Events as environment variables of the flow that they start, and read back there.

LAKECHIME_EVENT_COUNT, LAKECHIME_FIRST_SEQ and LAKECHIME_LAST_SEQ are always there. LAKECHIME_EVENTS has the events as a JSON list. Where it
would be longer than the limit, LAKECHIME_QUERY names them instead, as the question to LakeChime that finds them: they are never cut. The
question names the filter of the trigger, or, where nobody gave one, the places of the events: others of these tables are not found.
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
LIMIT_BYTES = 65_536  # Linux gives one variable twice that, and all of them some megabytes together


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What finds the events again: the filter of the trigger that fired."""

    partition: tuple[JsonValue, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def event_variables(
    events: Sequence[DataChangeEvent], *, query: Query | None = None, limit_bytes: int = LIMIT_BYTES
) -> dict[str, str]:
    """Of the events in the order of their seq. `query`: the partition and tags that they were found by; None: nobody knows."""
    seqs = [event.seq for event in events if event.seq is not None]
    variables = {COUNT: str(len(events))}
    if seqs:
        variables |= {FIRST_SEQ: str(min(seqs)), LAST_SEQ: str(max(seqs))}
    text = json.dumps([event.to_json() for event in events], separators=(",", ":"))
    if len(text) <= limit_bytes:
        return {**variables, EVENTS: text}
    if len(seqs) < len(events):
        raise InvalidEventError(
            f"{len(events):,} events take {len(text):,} bytes, and a query for them would miss those without a seq; register them first"
        )
    named = _query(events, query, (min(seqs) - 1, max(seqs)))
    if len(named) > limit_bytes:
        raise InvalidEventError(
            f"the query that names the events takes {len(named):,} bytes, and at most {limit_bytes:,} are passed on; wait for fewer tables"
        )
    return {**variables, QUERY: named}


def _query(events: Sequence[DataChangeEvent], query: Query | None, span: tuple[int, int]) -> str:
    named: dict[str, Any] = {
        "tables": sorted({(event.cluster, event.table) for event in events}),
        "after": span[0],
        "until": span[1],
    }
    if query is None:
        named["runs"] = _runs([event.seq or 0 for event in events], span[0])
        query = Query()
    if query.partition is not None:
        named["partition"] = list(query.partition)
    if query.tags:
        named["tags"] = dict(query.tags)
    return json.dumps(named, separators=(",", ":"))


def _runs(seqs: Sequence[int], after: int) -> list[int]:
    """Return places as lengths by turns: how many are left out after `after`, how many follow on each other, and so on."""
    runs, last = [0, 0], after
    for seq in sorted(set(seqs)):
        if seq > last + 1:
            runs += [seq - last - 1, 0]
        runs[-1] += 1
        last = seq
    return runs


def _places(runs: Sequence[int], after: int) -> set[int]:
    """Return the places that `_runs` named."""
    places: set[int] = set()
    last = after
    for left_out, taken in zip(runs[::2], runs[1::2], strict=True):
        first = last + left_out + 1
        places.update(range(first, first + taken))
        last = first + taken - 1
    return places


def read_variables(
    variables: Mapping[str, str], reader: Reader | None = None
) -> tuple[DataChangeEvent, ...]:
    """In the flow: the events that started it. `reader`: a client, which is needed where they are named by a query."""
    if EVENTS in variables:
        return tuple(DataChangeEvent.from_json(event) for event in json.loads(variables[EVENTS]))
    if QUERY not in variables:
        raise InvalidEventError(
            f"neither {EVENTS} nor {QUERY} is set; a trigger of LakeChime sets one of them"
        )
    if reader is None:
        raise InvalidEventError(
            f"the events are named by {QUERY}, since they were too many for a variable; pass reader=, a LakeChime client"
        )
    named = json.loads(variables[QUERY])
    tables = tuple((cluster, table) for cluster, table in named["tables"])
    partition = tuple(named["partition"]) if "partition" in named else None
    interest = Interest(
        tables=tables, partition=partition, tags=named.get("tags", {}), after=named["after"]
    )
    events = tuple(found.event for found in read_all(reader, interest, named["until"]))
    if "runs" in named:
        places = _places(named["runs"], named["after"])
        events = tuple(event for event in events if event.seq in places)
    if COUNT in variables and len(events) < int(variables[COUNT]):
        raise InvalidEventError(
            f"{QUERY} finds {len(events):,} of the {int(variables[COUNT]):,} events that started this flow, since retention deleted the "
            "others; read the tables as a whole, and keep events longer"
        )
    if COUNT in variables and len(events) > int(variables[COUNT]):
        raise InvalidEventError(
            f"{QUERY} finds {len(events):,} events, and {int(variables[COUNT]):,} started this flow: its filter is another one than "
            "they were found by; give the trigger's own filter as query=, or none"
        )
    return events
