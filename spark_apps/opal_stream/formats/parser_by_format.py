"""The parser of each format."""

from collections.abc import Mapping

import pyarrow as pa

from opal_stream.format_names import FORMATS
from opal_stream.formats.absent_members import NO_DEFAULTS, Defaults
from opal_stream.formats.debezium_json import DebeziumJsonParser
from opal_stream.formats.json_lines import JsonParser
from opal_stream.formats.parser import Parser
from opal_stream.formats.registry import AVRO, JSON, SchemaRegistry
from opal_stream.formats.registry_json import RegistryJsonParser
from opal_stream.formats.schemas.new_columns import Known
from opal_stream.formats.unavailable import Placeholder
from opal_stream.operations.reading import FormatOptions

Types = Mapping[str, pa.DataType]


def parser_of(
    chosen: FormatOptions,
    types: Types,
    source: Types,
    *,
    known: Known = None,
    defaults: Defaults = NO_DEFAULTS,
) -> Parser:
    """Return the parser of values in the chosen format.

    - `types` are the columns that values fill, `source` the members of an event's source.
    - `known` are all columns of the table; None if the parser need not report others.
    - `defaults` are the values of columns in messages that lack them.
    """
    form = FORMATS[chosen.format]
    unit = chosen.time_unit
    placeholder = Placeholder(chosen.unavailable_value)
    registry: SchemaRegistry | None = None
    if form.is_registered:
        kind = AVRO if form.is_avro else JSON
        registry = SchemaRegistry(chosen.registry or "", kind)
    if form.is_avro and registry is not None:
        from opal_stream.formats.avro import AvroParser  # fastavro is needed here only

        return AvroParser(
            registry,
            types,
            time_unit=unit,
            debezium=form.is_debezium,
            source=source,
            known=known,
            placeholder=placeholder,
            defaults=defaults,
        )
    # With a registry the schemas say which columns are new, without one the values do
    of_values = None if form.is_registered else known
    inner: Parser
    if form.is_debezium:
        inner = DebeziumJsonParser(
            types,
            unit,
            known=of_values,
            source=source,
            placeholder=placeholder,
            defaults=defaults,
        )
    else:
        inner = JsonParser(types, unit, known=of_values, defaults=defaults)
    if registry is None:
        return inner
    return RegistryJsonParser(registry, inner, types, known=known, debezium=form.is_debezium)
