"""Inline and batch ingests together.

An inline ingest leaves earlier rows pending; a repeated token returns its result.
"""

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.storage.memory import MemoryStorage
from tests.kit.check import check_table
from tests.opal_lake.shop import content, create, rows


def test_an_inline_ingest_reports_pending_rows_of_other_ingests() -> None:
    table = create(MemoryStorage())
    table.ingest(*rows([("a", 9, 1)]))
    result = table.ingest(*rows([("a", 5, 2), ("b", 1, 3)]), metadata="inline")
    assert result.notes == (
        "1 segment of earlier ingests waits for a metagen; an inline ingest leaves them pending",
    )
    assert content(table) == [("a", 5, 2), ("b", 1, 3)]
    table.metagen()
    assert content(table) == [("a", 9, 1), ("b", 1, 3)]
    assert table.ingest(*rows([("c", 1, 1)]), metadata="inline").notes == ()
    assert check_table(table) == []


def test_an_inline_ingest_does_not_return_the_result_of_a_batch_ingest() -> None:
    table = create(MemoryStorage())
    table.ingest(*rows([("a", 1, 1)]), token="t")
    with pytest.raises(
        InvalidInputError,
        match="version 1 ingested these rows in batch mode, and they are pending",
    ):
        table.ingest(*rows([("a", 1, 1)]), token="t", metadata="inline")
    inline = table.ingest(*rows([("b", 1, 1)]), token="u", metadata="inline")
    again = table.ingest(*rows([("b", 1, 1)]), token="u")
    assert (again.version, again.repeated) == (inline.version, True)


def test_error_names_an_unknown_metadata_mode() -> None:
    with pytest.raises(
        InvalidInputError, match="metadata='later' is unknown; use one of batch, inline"
    ):
        create(MemoryStorage()).ingest(*rows([("a", 1, 1)]), metadata="later")
