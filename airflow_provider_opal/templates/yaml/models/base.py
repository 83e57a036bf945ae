"""The types of the models' keys: texts, names and times in the form that YAML writes."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from airflow_provider_opal.templates.yaml.models import values
from opal_lake.arguments.values import MAX_CLUSTER_COLUMNS

TEXT, OTHER = "(text)", "(other)"  # tags of unions; brackets keep them apart from every key


def _texts(pattern: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, **more})


def is_text(value: Any) -> str:
    """Return the tag of a value in a union of a text with another form."""
    return OTHER if isinstance(value, dict | list | BaseModel) else TEXT


Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Column = Annotated[str, Field(min_length=1, max_length=250)]
Columns = Annotated[list[Column], Field(min_length=1), AfterValidator(values.distinct)]
Duration = Annotated[
    timedelta,
    BeforeValidator(values.duration),
    _texts(values.DURATION, examples=["10m", "2h", "30d"]),
]
Moment = Annotated[
    datetime, BeforeValidator(values.moment), _texts(values.MOMENT, examples=["2026-11-01"])
]
Cron = Annotated[
    str,
    AfterValidator(values.schedule_text),
    WithJsonSchema({"type": "string", "examples": [*values.PRESETS, "0 6 * * *"]}),
]
Zone = Annotated[
    str, AfterValidator(values.timezone), _texts(values.TIMEZONE, examples=["UTC", "Europe/Berlin"])
]
TableName = Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(values.table_name)]
Function = Annotated[str, AfterValidator(values.function_name), _texts(values.FUNCTION)]
Connection = Annotated[str, AfterValidator(values.connection), _texts(values.IDENTIFIER)]
DagId = Annotated[str, AfterValidator(values.identifier), _texts(values.IDENTIFIER)]
ConsumerName = Annotated[str, AfterValidator(values.name), _texts(values.NAME)]
SettingText = Annotated[
    str,
    BeforeValidator(values.plain_setting),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Settings = Annotated[dict[str, SettingText], AfterValidator(values.no_secret)]
PartitionValue = Annotated[
    Any,
    AfterValidator(values.partition_value),
    WithJsonSchema({"type": ["string", "integer", "boolean"]}),
]
ZOrder = Annotated[
    list[Column],
    Field(min_length=1, max_length=MAX_CLUSTER_COLUMNS),
    AfterValidator(values.distinct),
]
DeltaSpan = Annotated[
    timedelta | int,
    BeforeValidator(values.delta_span),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": values.DURATION},
                {"type": "integer", "minimum": 0},
            ],
            "examples": ["90d"],
        }
    ),
]
Threshold = Annotated[
    int | str,
    BeforeValidator(values.threshold),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": values.SHARE},
            ],
            "examples": [100, "5%"],
        }
    ),
]
Codec = Annotated[str, AfterValidator(values.codec), _texts(values.CODEC, examples=["zstd:19"])]
Percent = Annotated[int, Field(ge=1, le=100)]
Small = Annotated[int, Field(ge=0, le=1_000)]
Number = Annotated[int, Field(ge=1, le=100_000)]


class Strict(BaseModel):
    """A model without unknown keys, which converts no value to another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Declares(Strict):
    """A model whose further keys are arguments of an operation (`with_arguments_of`)."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
