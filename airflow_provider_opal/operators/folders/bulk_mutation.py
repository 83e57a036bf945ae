"""BulkMutationOperator: files of inserts, updates and deletes are merged into a folder."""

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

# A run may merge any number of files; XCom gets examples of these only
MAX_XCOM_FILES = 50


class BulkMutationOperator(WholeTableOperator):
    """A task that merges `increments` into the folder `master`.

    The new state replaces the old one in one step, and merged files are moved away. The arguments
    are those of `opal mutate`. `properties` are parameters of chombo's RecordSetBulkMutator, by
    their names. An argument that is given overrides its property. In XCom, `counts` has the total
    counts, `examples` the counts of up to 50 files, and `report` the path of the report on all
    files. With `dry_run` nothing changes, and no report is written.

    Paths may be templates. With `{{ partition_key }}` in a path, a run without a key is refused. A
    retry merges nothing twice. To merge corrected or newly arrived files, clear the task.
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
        from_properties = {} if properties is None else _arguments_of(properties)
        paths = [increments] if isinstance(increments, str) else increments
        given = {**from_properties, **Mutate.among(kwargs), "increments": paths}
        if ids is not None:
            given["ids"] = ids
        if "ids" not in given:
            raise ValueError(
                "a mutation needs the fields of a record's id; "
                "add ids=['id'], or properties with id.field.ordinals"
            )
        super().__init__(table=master, **{**kwargs, **given})

    def execute(  # type: ignore[override]  # as the parent's
        self, context: "Context"
    ) -> dict[str, Any]:
        """Run the job, also for a dry run."""
        # Not the parent's execute: its dry run starts no Spark, and this one has to read the files
        return OpalSparkOperator.execute(self, context)

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Return the result with examples of some files, and the path of the report."""
        from opal_folder.mutation import report_uri

        xcom = super().finish(context, result)
        examples = xcom["examples"][:MAX_XCOM_FILES]
        return {**xcom, "examples": examples, "report": report_uri(result)}

    def _result(self, opal: "OpalHook", spec: "JobSpec[Any]") -> "JobResult | None":
        """Return the result of the job from the folder next to the master, or None."""
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
