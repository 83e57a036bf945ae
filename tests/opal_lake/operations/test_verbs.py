"""Methods that are made of declarations, and what type checkers infer of them."""

import inspect
import pickle
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, assert_type, get_type_hints

import numpy as np
import pyarrow as pa
import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.operations.compact import Compact
from opal_lake.operations.ingest import Ingest
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.savepoints import Savepoint
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.opal_lake.shop import create, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from opal_spark import OpalTable

    def inferred(table: Table, on_spark: OpalTable) -> None:
        """For mypy: the result and the arguments of a method follow from its declaration."""
        assert_type(table.compact(mode="minor"), JobResult)
        assert_type(table.describe(), dict[str, Any])
        assert_type(on_spark.compact(mode="minor"), JobResult)
        assert_type(on_spark.read(), DataFrame)
        assert_type(on_spark.changes(1), DataFrame)
        assert_type(on_spark.history_view(), DataFrame)
        assert_type(table.read(), pa.Table)
        assert_type(table.changes(1), pa.Table)
        assert_type(table.history_view(), pa.Table)


@pytest.fixture
def table() -> Table:
    made = create(MemoryStorage())
    made.ingest(*rows([("a", 1, 1), ("b", 1, 2)]), metadata="inline")
    return made


def test_a_method_has_the_signature_and_the_text_of_its_declaration() -> None:
    shown = inspect.signature(Table.compact)
    assert [*shown.parameters][1:] == [*inspect.signature(Compact).parameters]
    assert shown.parameters["mode"].default == "minor"
    assert [*inspect.signature(Table.changes).parameters][:3] == ["self", "start", "end"]
    assert inspect.getdoc(Table.compact) == inspect.getdoc(Compact)
    assert Table.compact.__qualname__ == "Table.compact"
    assert pickle.loads(pickle.dumps(Table.compact)) is Table.compact
    get_type_hints(Table.compact)


def test_wrong_arguments_are_named_by_the_method(table: Table) -> None:
    with pytest.raises(TypeError, match=r"compact\(\) got an unexpected keyword argument 'foo'"):
        table.compact(foo=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"zorder\(\) missing the arguments 'columns'"):
        table.zorder()  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError, match="changes needs start, got None"):
        table.changes(None)  # type: ignore[arg-type]
    for wrong in (5, ["a"], "window"):
        with pytest.raises(InvalidInputError, match="is not a mapping; write properties="):
            table.set_properties(wrong)
        with pytest.raises(InvalidInputError, match="is not a mapping; write columns="):
            table.add_columns(wrong)


def test_numbers_and_lists_of_other_libraries_are_accepted(table: Table) -> None:
    expected = table.read(columns=["sku"]).to_pylist()
    for names in ({"sku"}, {"sku": 1}.keys(), np.array(["sku"]), ("sku",)):
        assert table.read(columns=names).to_pylist() == expected
    assert table.changes(np.int64(1)).num_rows == 2
    assert table.read(version=np.int64(1)).num_rows == 2


def test_a_spec_has_one_token_and_texts_for_times() -> None:
    with pytest.raises(InvalidInputError, match="give it once"):
        JobSpec.of("compact", "t", {"token": "a"}, token="b")
    spec: JobSpec[Any] = JobSpec(operation=Compact(token="a"), table="t")
    assert (spec.token, spec.operation.token, spec.job.token) == ("a", None, "a")
    assert JobSpec.from_json(spec.to_json()) == spec
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    restored = JobSpec.of("restore", "t", {"timestamp": moment}).to_dict()
    assert restored["arguments"] == {"timestamp": "2026-01-31T12:00:00+00:00"}
    with pytest.raises(InvalidInputError, match="has no argument deleted"):
        JobSpec.of("ingest", "t", {"source": {"files": ["a.csv"]}, "deleted": [True]})


def test_an_argument_called_name_is_not_the_operation() -> None:
    spec: JobSpec[Any] = JobSpec(operation=Savepoint(name="check"), table="t")
    assert spec.to_dict()["operation"] == "savepoint"


def test_arguments_with_arrays_can_be_compared_and_shown() -> None:
    marked = Ingest(source=pa.table({}), deleted=np.array([True, False]))
    assert "deleted=" in repr(marked)
    assert marked != Ingest(source=pa.table({}))
