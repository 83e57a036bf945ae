"""What triggers ask of a client."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from lakechime.answers import Found, Interest, Page, Registered, TableName
from lakechime.event import JsonValue


class Reader(Protocol):
    """A client, as far as triggers use one."""

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
    """Page by page, up to the head of the first page."""
    after, last = interest.after, until
    while True:
        page = reader.events(
            interest.tables,
            after=after,
            until=last,
            partition=interest.partition,
            tags=interest.tags,
        )
        yield from page.events
        if not page.more:
            return
        after, last = page.next_after, page.head if last is None else last
