"""Every property at the ends of its range: a value is refused, or a whole table works with it."""

from dataclasses import replace

import pytest

from opal_lake.definition.properties import PROPERTIES, Number
from opal_lake.errors import InvalidInputError
from opal_lake.storage import open_storage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.shop import Row, content, create, latest, rows

NUMBERS = [name for name, of in PROPERTIES.items() if isinstance(of.kind, Number)]
EDGES = [0, 1, 2, 3, 100, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -1]
LONGEST = "999999d"
SPANS = ["0s", "1s", "1m", LONGEST, "1000000d", "999999w"]
CODECS = ["zstd:0", "zstd:1", "zstd:22", "zstd:23"]
AGES = ["0", "1", "9" * 18, "9" * 19, "-1"]
TEXTS = {
    "drift": SPANS,
    "window": SPANS,
    "clock_bound": SPANS,
    "look_back": AGES,
    "archive_after": AGES,
    "archive_codec": CODECS,
    "zorder": ["sku", "sku,at,price"],
    "event_table": ["t", "t" * 512],
}
BATCHES: list[list[Row]] = [
    [(f"k{hour % 3}", hour, hour), (f"n{hour}", hour, hour), ("gone", hour, None)]
    for hour in range(1, 9)
]


@pytest.mark.parametrize("name", NUMBERS)
def test_the_smallest_and_the_greatest_number_of_a_property_work(name: str) -> None:
    known = PROPERTIES[name].kind
    assert isinstance(known, Number)
    for value in (known.least, known.most):
        assert _refused_or_works(name, value)
    for value in (known.least - 1, known.most + 1):
        assert _refused_or_works(name, value) == (value == 0 and known.can_be_0)
    assert not _refused_or_works(name, True)


def test_files_cannot_be_folded_one_by_one() -> None:
    with pytest.raises(InvalidInputError, match="use 0, or a whole number from 2 to"):
        create(open_storage("memory://folds-of-one"), fold_files=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_a_property_is_refused_or_works(name: str) -> None:
    for value in EDGES:
        _refused_or_works(name, value)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_every_text_of_a_property_is_refused_or_works(name: str) -> None:
    for value in TEXTS[name]:
        _refused_or_works(name, value)


def test_the_limits_of_all_properties_are_tried() -> None:
    words = {"read_verify"}
    assert {*NUMBERS, *TEXTS} | words == {*PROPERTIES}


def _refused_or_works(name: str, value: int | str) -> bool:
    """Whether it is a value of the property; then a table lives by it."""
    uri = f"memory://limits-{name}-{str(value)[:24].replace(':', '_').replace(',', '_')}"
    try:
        table = create(open_storage(uri), **{name: value})
    except InvalidInputError:
        return False
    table = _failing_aloud(table)
    for index, batch in enumerate(BATCHES):
        is_inline = index % 4 < 3
        table.ingest(*rows(batch), metadata="inline" if is_inline else "batch", token=f"t{index}")
        if not is_inline:
            table.metagen()
    table.compact()
    table.zorder(["sku"])
    table.maintain()
    table.compact(mode="major", look_back=3)
    table.retain()
    assert content(table) == latest(BATCHES), f"{name}={value}"
    assert check_table(table) == [], f"{name}={value}"
    return True


def _failing_aloud(table: Table) -> Table:
    """Return a table on which what is done after a commit may not fail either."""

    def fail(error: Exception) -> None:
        raise AssertionError("work after a commit failed") from error

    return replace(table, log=replace(table.log, on_derived_failure=fail))
