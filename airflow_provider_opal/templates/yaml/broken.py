"""A broken YAML file as Airflow's import error of that file, without touching the DAGs beside it.

An exception in the loader would be the loader's error, and Airflow takes all DAGs of a file with an error out of service. So a broken file
becomes a DAG that cannot be serialized: Airflow's DAG processor writes that down under the DAG's own `relative_fileloc`, here the YAML
file, and goes on. Everywhere else (`airflow dags test`, a DagBag in somebody's tests) one such DAG would end the whole run, so there it
refuses to be bagged, which is an import error of the loader, and the others are bagged.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import DAG

from airflow_provider_opal.templates.yaml.text.problem import Problem
from opal_lake.errors import InvalidInputError


class BrokenYaml(DAG):
    """Stands for a YAML file's faulty pipelines. Never reaches Airflow's database."""

    def __init__(
        self, path: Path, problems: Sequence[Problem], everything: Sequence[Problem]
    ) -> None:
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        super().__init__(f"opal_broken_yaml_{digest}", tags=["opal"])
        self.path = path
        self.problems = tuple(problems)
        self.everything = tuple(everything)

    @property
    def relative_fileloc(self) -> str | None:
        """The YAML file's; what the importer sets is the loader's."""
        loader: str | None = self.__dict__.get("_loader")
        if loader is None:
            return None
        return os.path.normpath(
            os.path.join(
                os.path.dirname(loader), os.path.relpath(self.path, os.path.dirname(self.fileloc))
            )
        )

    @relative_fileloc.setter
    def relative_fileloc(self, loader: str | None) -> None:
        self.__dict__["_loader"] = loader

    def validate(self) -> None:
        """Airflow asks before it takes a DAG into a bag. A bag has one message for the loader, which so names all files."""
        if not is_dag_processor():
            raise InvalidInputError(message_of(self.everything))
        super().validate()  # type: ignore[no-untyped-call]  # Airflow's has no types

    def get_serialized_fields(self) -> NoReturn:  # type: ignore[override]  # asked first when a DAG is serialized
        from airflow.exceptions import (
            SerializationError,
        )  # other exceptions would be wrapped in words about this DAG

        raise SerializationError(message_of(self.problems))


def is_dag_processor() -> bool:
    """Whether DAGs are parsed for Airflow's database, by a process of its own."""
    return os.environ.get("_AIRFLOW_PROCESS_CONTEXT") == "client"


def message_of(problems: Sequence[Problem]) -> str:
    """A line a problem."""
    return "\n" + "\n".join(map(str, problems))


def register_broken(path: Path, problems: Sequence[Problem], everything: Sequence[Problem]) -> Any:
    """As every DAG of the loader: by its `with`."""
    with BrokenYaml(path, problems, everything) as dag:
        return dag
