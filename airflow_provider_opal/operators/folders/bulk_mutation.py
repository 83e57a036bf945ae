"""BulkMutationOperator: files of inserts, updates and deletes merged into a folder of files."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.operators.spark import OpalSparkOperator
from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.mutate import Mutate

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_opal.hooks.opal import OpalHook
    from opal_lake.operations.job_spec import JobSpec
    from opal_lake.result import JobResult


XCOM_FILES = 50


class BulkMutationOperator(WholeTableOperator):
    """Merges `increments` into the folder `master`, and swaps the old one and the new one at once. Merged files are moved away.

    The arguments are those of `opal mutate`. `properties` are parameters of chombo's RecordSetBulkMutator, by their names; what is given
    beside them counts more, also where it says the default. XCom gets `counts`, under `examples` those of each file, up to 50 of them, and
    under `report` the path of the report, which has all. With `dry_run` nothing changes, and there is no report.

    Paths take templates: with `{{ partition_key }}` in them a run without a key is refused. A retry merges nothing twice. After a
    correction of the files, or when more have come, clear the task: it merges what is there then.
    """

    declared = Mutate

    def __init__(
        self,
        *,
        master: str,
        increments: str | Sequence[str],
        ids: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        by_properties = {} if properties is None else _arguments_of(properties)
        named = [increments] if isinstance(increments, str) else increments
        given = {**by_properties, **Mutate.among(kwargs), "increments": named}
        if ids is not None:
            given["ids"] = ids
        if "ids" not in given:
            raise ValueError(
                "a mutation needs ids=['id'], the fields that make a record's id, or properties with id.field.ordinals"
            )
        super().__init__(table=master, **{**kwargs, **given})

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # as OpalSparkOperator's
        """Also a dry run reads files, with Spark."""
        return OpalSparkOperator.execute(self, context)

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """A run may merge any number of files, and XCom is no place for them all."""
        from opal_folder.mutation import report_uri

        xcom = super().finish(context, result)
        return {**xcom, "examples": xcom["examples"][:XCOM_FILES], "report": report_uri(result)}

    def _result(self, opal: "OpalHook", spec: "JobSpec[Any]") -> "JobResult | None":
        """From the folder beside the master."""
        from opal_folder.mutation import find_result

        assert spec.token is not None
        return find_result(
            spec.table,
            spec.token,
            dry_run=spec.operation.dry_run,
            options=opal.lake.options_for(spec.table),
        )


def _arguments_of(properties: Mapping[str, str]) -> dict[str, Any]:
    from opal_folder.properties import arguments_of

    arguments, _ = arguments_of(properties)
    return arguments
