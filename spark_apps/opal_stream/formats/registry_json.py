"""JSON in a registry's wire format: the head is taken off, and the rest is JSON as ever."""

from collections.abc import Sequence

from opal_stream.formats.parsed import Parsed, Parser
from opal_stream.formats.registry import HEAD_BYTES, SchemaRegistry, UnknownSchemaError, first_unseen, schema_id


class RegistryJsonParser:
    """Around a parser of JSON. A message of an unknown schema is a bad one."""

    def __init__(self, registry: SchemaRegistry, inner: Parser) -> None:
        self._registry = registry
        self._inner = inner

    def parse(self, values: Sequence[bytes]) -> Parsed:
        wrong = {head: reason for head in {value[:HEAD_BYTES] for value in values} if (reason := self._why_wrong(head)) is not None}
        good = [position for position, value in enumerate(values) if value[:HEAD_BYTES] not in wrong]
        parsed = self._inner.parse([values[position][HEAD_BYTES:] for position in good])
        parsed.kept = [good[position] for position in parsed.kept]
        parsed.bad = [(good[position], reason) for position, reason in parsed.bad]
        parsed.bad += [(position, wrong[value[:HEAD_BYTES]]) for position, value in enumerate(values) if value[:HEAD_BYTES] in wrong]
        return parsed

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        return first_unseen(self._registry, list(values))

    def learn(self, value: bytes) -> None:
        """That the registry has it is all that JSON needs of a schema."""
        self._why_wrong(value[:HEAD_BYTES])

    def _why_wrong(self, head: bytes) -> str | None:
        try:
            self._registry.schema(schema_id(head))
        except (UnknownSchemaError, ValueError) as error:
            return str(error)
        return None
