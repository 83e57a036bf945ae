"""A store behind the service: the same questions, asked over HTTP."""

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

# What goes into one request: well below what a service takes
MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_ENTRIES = 1000
PAGE_EVENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStore:
    """Asks a service. Its answers are those of the service's own store, errors too."""

    transport: Transport

    @classmethod
    def open(cls, url: str, *, token: str | None = None) -> Self:
        """Nothing is sent before the first question."""
        return cls(transport=Transport(url=url, token=token))

    def register(
        self, events: Sequence[DataChangeEvent], outbox: Outbox | None
    ) -> list[Registered]:
        """Large lists go in several requests; the outbox moves with the last one, when all the others are registered."""
        batches = list(_batches([event.to_json() for event in events])) or [[]]
        registered: list[Registered] = []
        for number, batch in enumerate(batches, start=1):
            body: dict[str, Any] = {"events": batch}
            if outbox is not None and number == len(batches):
                body["outbox"] = outbox_json(outbox)
            answers = self.transport.post(f"{V1}/events", body)[
                "registered"
            ]  # sent twice it is done once, a position too
            registered += [Registered.from_json(answer) for answer in answers]
        return registered

    def events(self, meant: Filter, *, after: int, until: int | None, limit: int) -> Page:
        body: dict[str, Any] = {**filter_json(meant), "after": after, "limit": limit}
        return page_of(
            self.transport.post(
                f"{V1}/events/query", body if until is None else {**body, "until": until}
            )
        )

    def events_between(self, meant: Filter, start_ts: int, end_ts: int) -> EventsBetween:
        found: list[Registered] = []
        covered_from, covered_until, after, more = start_ts, end_ts, 0, True
        while more:
            body = {
                **filter_json(meant),
                "start_ts": start_ts,
                "end_ts": end_ts,
                "after": after,
                "limit": PAGE_EVENTS,
            }
            answer = self.transport.post(f"{V1}/events/query", body)
            page = page_of(answer)
            found += page.events
            covered_from = max(covered_from, answer["covered_from_ts"])
            covered_until = min(covered_until, answer["covered_until_ts"])
            after, more = page.next_after, page.more
        return EventsBetween(
            events=tuple(found), covered_from_ts=covered_from, covered_until_ts=covered_until
        )

    def find(self, interests: Sequence[Interest]) -> Found:
        """Very many interests go in several requests; the head is then the least of their answers."""
        batches = list(_batches([interest_json(interest) for interest in interests])) or [[]]
        answers = [
            found_of(self.transport.post(f"{V1}/events/find", {"interests": batch}))
            for batch in batches
        ]
        return Found(
            seqs=tuple(seq for answer in answers for seq in answer.seqs),
            head=min(answer.head for answer in answers),
        )

    def head(self) -> int:
        return int(self.transport.get(f"{V1}/head")["head"])

    def table_state(self, cluster: str, table: str) -> TableState | None:
        state = self.transport.get(f"{V1}/table", cluster=cluster, table=table)["state"]
        return None if state is None else state_of(state)

    def seen(self, cluster: str, table: str, *, after: str) -> SeenPage:
        answer = self.transport.get(f"{V1}/table/seen", cluster=cluster, table=table, after=after)
        return SeenPage(items=dict(answer["items"]), next_after=answer["next_after"])

    def watermark(self, consumer: str, key: str) -> Watermark | None:
        found = self.transport.get(f"{V1}/watermark", consumer=consumer, key=key)["watermark"]
        return None if found is None else watermark_of(found)

    def watermarks(self, consumer: str) -> dict[str, Watermark]:
        found = self.transport.get(f"{V1}/watermarks", consumer=consumer)["watermarks"]
        return {watermark["key"]: watermark_of(watermark) for watermark in found}

    def consumers(self, limit: int) -> list[Consumer]:
        return [
            Consumer(**found)
            for found in self.transport.get(f"{V1}/consumers", limit=limit)["consumers"]
        ]

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
        return watermark_of(
            self.transport.in_one_step("PUT", f"{V1}/watermark", body=body)["watermark"]
        )

    def delete_watermark(self, consumer: str, key: str, *, expected: int, step: str) -> None:
        self.transport.in_one_step(
            "DELETE", f"{V1}/watermark", consumer=consumer, key=key, expected=expected, step=step
        )

    def expire(self, older_than_ms: int, *, keep_unseen: bool) -> int:
        body = {"older_than_ms": older_than_ms, "keep_unseen": keep_unseen}
        return int(
            self.transport.once("POST", f"{V1}/expire", body=body)["expired"]
        )  # a second one would run beside the first

    def check(self) -> str:
        return f"{self.transport.url}: {self.transport.get(f'{V1}/check')['check']}"

    def close(self) -> None:
        self.transport.close()


def _batches(entries: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """In order; an entry that is too large by itself goes alone, and the service says so."""
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
    """Tokens of a service, by its own admin routes; the transport's token has to be an admin's."""

    transport: Transport

    def create(self, name: str, role: str) -> str:
        body = {"name": checked_token_name(name), "role": checked_role(role)}
        return str(self.transport.once("POST", f"{V1}/tokens", body=body)["token"])

    def tokens(self) -> Sequence[Token]:
        return [token_of(token) for token in self.transport.get(f"{V1}/tokens")["tokens"]]

    def revoke(self, name: str) -> None:
        self.transport.once("DELETE", f"{V1}/token", name=checked_token_name(name))
