"""The store of a service, which is asked over HTTP."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lakechime.access import Token, checked_role, checked_token_name, token_of
from lakechime.answers import (
    Consumer,
    EventsBetween,
    Filter,
    Found,
    Interest,
    Outbox,
    Page,
    Registered,
    SeenPage,
    TableState,
    Watermark,
)
from lakechime.event import DataChangeEvent, JsonValue
from lakechime.remote.transport import Transport, encoded
from lakechime.remote.wire import (
    V1,
    filter_json,
    found_of,
    interest_json,
    outbox_json,
    page_of,
    state_of,
    watermark_of,
)

# Limits of one request, well below those of a service
MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_ENTRIES = 1000
PAGE_EVENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStore:
    """A store that asks a service, and has its answers and errors."""

    transport: Transport

    @classmethod
    def open(cls, url: str, *, token: str | None = None) -> Self:
        """Return a store for a service, without sending anything."""
        return cls(transport=Transport(url=url, token=token))

    def register(
        self, events: Sequence[DataChangeEvent], outbox: Outbox | None
    ) -> list[Registered]:
        """Register events; a large list takes several requests.

        The outbox moves with the last request, after all other events are registered.
        """
        batches = list(_batches([event.to_json() for event in events])) or [[]]
        registered: list[Registered] = []
        for number, batch in enumerate(batches, start=1):
            body: dict[str, Any] = {"events": batch}
            if outbox is not None and number == len(batches):
                body["outbox"] = outbox_json(outbox)
            # Sending a request twice does no harm, also if it moves a position
            answer = self.transport.post(f"{V1}/events", body)
            registered += [Registered.from_json(entry) for entry in answer["registered"]]
        return registered

    def events(self, wanted: Filter, *, after: int, until: int | None, limit: int) -> Page:
        body: dict[str, Any] = {**filter_json(wanted), "after": after, "limit": limit}
        if until is not None:
            body["until"] = until
        return page_of(self.transport.post(f"{V1}/events/query", body))

    def events_between(self, wanted: Filter, start_ts: int, end_ts: int) -> EventsBetween:
        matching: list[Registered] = []
        covered_from = start_ts
        covered_until = end_ts
        after = 0
        while True:
            body = {
                **filter_json(wanted),
                "start_ts": start_ts,
                "end_ts": end_ts,
                "after": after,
                "limit": PAGE_EVENTS,
            }
            answer = self.transport.post(f"{V1}/events/query", body)
            page = page_of(answer)
            matching += page.events
            covered_from = max(covered_from, answer["covered_from_ts"])
            covered_until = min(covered_until, answer["covered_until_ts"])
            if not page.more:
                break
            after = page.next_after
        return EventsBetween(
            events=tuple(matching), covered_from_ts=covered_from, covered_until_ts=covered_until
        )

    def find(self, interests: Sequence[Interest]) -> Found:
        """Return the first seqs of interests; very many interests take several requests.

        The head is then the least head of their answers.
        """
        batches = list(_batches([interest_json(interest) for interest in interests])) or [[]]
        seqs: list[int | None] = []
        heads: list[int] = []
        for batch in batches:
            answer = found_of(self.transport.post(f"{V1}/events/find", {"interests": batch}))
            seqs += answer.seqs
            heads.append(answer.head)
        return Found(seqs=tuple(seqs), head=min(heads))

    def head(self) -> int:
        return int(self.transport.get(f"{V1}/head")["head"])

    def table_state(self, cluster: str, table: str) -> TableState | None:
        state = self.transport.get(f"{V1}/table", cluster=cluster, table=table)["state"]
        return None if state is None else state_of(state)

    def seen(self, cluster: str, table: str, *, after: str) -> SeenPage:
        answer = self.transport.get(f"{V1}/table/seen", cluster=cluster, table=table, after=after)
        return SeenPage(items=dict(answer["items"]), next_after=answer["next_after"])

    def watermark(self, consumer: str, key: str) -> Watermark | None:
        answer = self.transport.get(f"{V1}/watermark", consumer=consumer, key=key)
        watermark = answer["watermark"]
        return None if watermark is None else watermark_of(watermark)

    def watermarks(self, consumer: str) -> dict[str, Watermark]:
        answer = self.transport.get(f"{V1}/watermarks", consumer=consumer)
        return {watermark["key"]: watermark_of(watermark) for watermark in answer["watermarks"]}

    def consumers(self, limit: int) -> list[Consumer]:
        answer = self.transport.get(f"{V1}/consumers", limit=limit)
        return [Consumer(**consumer) for consumer in answer["consumers"]]

    def put_watermark(
        self, consumer: str, key: str, value: JsonValue, *, expected: int | None, step: str
    ) -> Watermark:
        body = {
            "consumer": consumer,
            "key": key,
            "value": value,
            "expected": expected,
            "step": step,
        }
        answer = self.transport.in_one_step("PUT", f"{V1}/watermark", body=body)
        return watermark_of(answer["watermark"])

    def delete_watermark(self, consumer: str, key: str, *, expected: int, step: str) -> None:
        self.transport.in_one_step(
            "DELETE", f"{V1}/watermark", consumer=consumer, key=key, expected=expected, step=step
        )

    def expire(self, older_than_ms: int, *, keep_unseen: bool) -> int:
        body = {"older_than_ms": older_than_ms, "keep_unseen": keep_unseen}
        # Sent once: a repeat would run at the same time as the first one
        return int(self.transport.once("POST", f"{V1}/expire", body=body)["expired"])

    def check(self) -> str:
        return f"{self.transport.url}: {self.transport.get(f'{V1}/check')['check']}"

    def close(self) -> None:
        self.transport.close()


def _batches(entries: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield entries in batches of a limited size.

    An entry that is too large on its own is sent alone, and the service refuses it.
    """
    batch: list[Mapping[str, Any]] = []
    size = 0
    for entry in entries:
        length = len(encoded(entry))
        if batch and (len(batch) == MAX_BATCH_ENTRIES or size + length > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += length
    if batch:
        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTokens:
    """The tokens of a service, through its routes for admins, with an admin's token."""

    transport: Transport

    def create(self, name: str, role: str) -> str:
        body = {"name": checked_token_name(name), "role": checked_role(role)}
        return str(self.transport.once("POST", f"{V1}/tokens", body=body)["token"])

    def tokens(self) -> Sequence[Token]:
        return [token_of(token) for token in self.transport.get(f"{V1}/tokens")["tokens"]]

    def revoke(self, name: str) -> None:
        self.transport.once("DELETE", f"{V1}/token", name=checked_token_name(name))
