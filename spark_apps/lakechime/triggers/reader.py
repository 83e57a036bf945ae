"""The part of a client that triggers use."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from lakechime.answers import Found, Interest, Page, Registered, TableName
from lakechime.event import JsonValue


class Reader(Protocol):
    """A client with the methods that triggers use."""

    def events(
        self,
        tables: Sequence[TableName] = (),
        *,
        after: int = 0,
        until: int | None = None,
        partition: Sequence[JsonValue] | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 1000,
    ) -> Page: ...

    def find(self, interests: Sequence[Interest]) -> Found: ...


def read_all(reader: Reader, interest: Interest, until: int | None = None) -> Iterator[Registered]:
    """Yield the events of an interest page by page, up to the head of the first page."""
    after = interest.after
    while True:
        page = reader.events(
            interest.tables,
            after=after,
            until=until,
            partition=interest.partition,
            tags=interest.tags,
        )
        yield from page.events
        if not page.more:
            return
        after = page.next_after
        # Events that are registered meanwhile would make the loop endless
        if until is None:
            until = page.head
