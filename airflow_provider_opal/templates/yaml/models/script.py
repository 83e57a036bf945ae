"""A script of SQL in YAML: the arguments of SqlOperator and of a DAG."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from airflow_provider_opal.templates.yaml.models.base import (
    OTHER,
    TEXT,
    Cron,
    Settings,
    Text,
    is_text,
)
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions

# A job takes some 120 kilobytes
SqlText = Annotated[str, Field(min_length=1, max_length=100_000)]


class ScriptModel(RunOptions):
    """Statements of SQL on the tables of a lake."""

    schedule: Cron | None = Field(description="Cron, a preset, or null (by hand).")
    sql: (
        Annotated[SqlText, Tag(TEXT)] | Annotated[list[SqlText], Field(min_length=1), Tag(OTHER)]
    ) = Field(
        discriminator=Discriminator(is_text),
        description=(
            "The statements: a text, or a file that ends in .sql, from the folder of this file on; "
            "or a list of them."
        ),
    )
    args: Settings | None = Field(
        None,
        description="Values of parameters such as `:day`, as texts. May hold "
        "`{{ partition_key }}`.",
    )
    catalog: Text | None = Field(
        None, description="The name of the lake's root in statements. Default: lake."
    )
    limit: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="At most so many rows of a query in the log; 0 for all. Default: 100."
    )

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments of SqlOperator that are given."""
        given = self.model_dump(exclude_none=True)
        names = ("sql", "args", "catalog", "limit")
        return {name: given[name] for name in names if name in given}
