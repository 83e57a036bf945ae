"""JSON in a registry's wire format: a head with the id of a schema, and plain JSON."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from opal_stream.formats.depth import check_depth
from opal_stream.formats.parser import Parsed, Parser
from opal_stream.formats.registry import (
    HEAD_BYTES,
    SchemaRegistry,
    first_unseen,
    schema_id,
)
from opal_stream.formats.schemas.additions import Additions, find_additions, merge_additions
from opal_stream.formats.schemas.json_types import json_schema_columns
from opal_stream.formats.schemas.members import members_of_types
from opal_stream.formats.schemas.new_columns import Known


class RegistryJsonParser:
    """A parser around one of plain JSON; an unknown schema makes a message bad."""

    def __init__(
        self,
        registry: SchemaRegistry,
        inner: Parser,
        types: Mapping[str, pa.DataType],
        *,
        known: Known = None,
        debezium: bool = False,
    ) -> None:
        self.registry = registry
        self._inner = inner
        self._types = types
        self._known = known
        self._debezium = debezium
        self._new: dict[bytes, Additions] = {}

    def parse(self, values: Sequence[bytes]) -> Parsed:
        heads = [value[:HEAD_BYTES] for value in values]
        wrong: dict[bytes, str] = {}
        for head in set(heads):
            reason = self._why_wrong(head)
            if reason is not None:
                wrong[head] = reason
        good = [position for position, head in enumerate(heads) if head not in wrong]
        parsed = self._inner.parse([values[position][HEAD_BYTES:] for position in good])
        parsed.positions = [good[position] for position in parsed.positions]
        parsed.bad = [(good[position], reason) for position, reason in parsed.bad]
        if wrong:
            for position, head in enumerate(heads):
                if head in wrong:
                    parsed.bad.append((position, wrong[head]))
        if self._known is not None:
            by_position = {position: heads[position] for position in sorted(parsed.positions)}
            parsed.new = merge_additions(self._new_of, by_position)
        return parsed

    def _new_of(self, head: bytes) -> Additions:
        if head not in self._new:
            number = schema_id(head)
            types = json_schema_columns(self.registry.schema(number).text, debezium=self._debezium)
            self._new[head] = find_additions(
                types,
                self._known,
                members_of_types(types, self._types),
                lambda: self._types_of_versions(number),
            )
        return self._new[head]

    def _types_of_versions(self, number: int) -> Iterator[Mapping[str, pa.DataType]]:
        for version in self.registry.versions(number):
            try:
                check_depth(version.text.encode(), "the registry's schema")
                yield json_schema_columns(version.text, debezium=self._debezium)
            except ValueError:
                continue  # the subject had schemas of another kind before

    def take_over(self, other: "RegistryJsonParser") -> None:
        self.registry = other.registry

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        return first_unseen(self.registry, list(values))

    def learn(self, value: bytes) -> None:
        """Ask the registry for all that messages of the schema need.

        Spark's tasks may not reach it.
        """
        self._why_wrong(value[:HEAD_BYTES])

    def _why_wrong(self, head: bytes) -> str | None:
        """Return why messages of a head are bad; None if its schema can be read."""
        try:
            text = self.registry.schema(schema_id(head)).text
            check_depth(text.encode(), "the registry's schema")
            if self._known is not None:
                self._new_of(head)
        except ValueError as error:
            return str(error)
        return None
