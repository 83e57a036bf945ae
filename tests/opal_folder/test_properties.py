"""The properties file as the paper has it."""

import pytest

from opal_folder.properties import arguments_of, parse_properties
from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate

AS_WRITTEN = """#op.code.field.ordinal=4
deleted.op.code=D
deleted.record.file.prefix=del
temporal.ordering.field.ordinal=5
temporal.ordering.field.numeric=true
id.field.ordinals=0
"""


def test_every_parameter_is_understood_as_it_is_written() -> None:
    arguments, unknown = arguments_of(parse_properties(AS_WRITTEN.replace("#op", "op")))
    job = Mutate(increments=["incr"], **arguments)
    assert (job.ids, job.order, job.order_type) == (["0"], "5", "numeric")
    assert (job.op_field, job.deleted_op, job.delete_prefix, job.header) == ("4", "D", "del", False)
    assert unknown == []


def test_comments_are_ignored_and_an_id_may_have_several_fields() -> None:
    arguments, _ = arguments_of(
        parse_properties(AS_WRITTEN.replace("ordinals=0", "ordinals = 0, 2"))
    )
    assert arguments["ids"] == ["0", "2"]
    assert "op_field" not in arguments


def test_without_an_order_the_files_suffix_is_it() -> None:
    arguments, _ = arguments_of({"id.field.ordinals": "0"})
    assert arguments["order"] == "file_suffix"


def test_an_order_that_is_not_numeric_is_text() -> None:
    arguments, _ = arguments_of(
        {
            "id.field.ordinals": "0",
            "temporal.ordering.field.ordinal": "5",
            "temporal.ordering.field.numeric": "false",
        }
    )
    assert arguments["order_type"] == "text"


def test_delimiters_become_options_of_input_and_output() -> None:
    arguments, _ = arguments_of(
        {"id.field.ordinals": "0", "field.delim.regex": ";", "field.delim.out": "|"}
    )
    assert (arguments["delimiter"], arguments["output_options"]) == (";", {"sep": "|"})


def test_parameters_of_other_jobs_are_listed_and_misspelt_ones_refused() -> None:
    assert arguments_of({"id.field.ordinals": "0", "num.reducer": "3"})[1] == ["num.reducer"]
    with pytest.raises(InvalidInputError, match=r"did you mean 'deleted\.op\.code'"):
        arguments_of({"id.field.ordinals": "0", "delete.op.code": "D"})


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "id.field.ordinals=0"),
        ({"id.field.ordinals": "id"}, "not an ordinal"),
        (
            {
                "id.field.ordinals": "0",
                "temporal.ordering.field.ordinal": "0",
                "temporal.ordering.field.numeric": "yes",
            },
            "neither",
        ),
    ],
)
def test_missing_and_wrong_parameters_are_reported(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        arguments_of(given)
