"""The file that `opal dag new NAME` writes: valid, and every line says what it is for."""

from pathlib import Path

from airflow_provider_opal.templates.yaml.files import SUFFIX
from airflow_provider_opal.templates.yaml.models.values import identifier
from airflow_provider_opal.templates.yaml.schema import schema_text
from opal_lake.errors import InvalidInputError

LOADER = "load_yaml.py"
SCHEMA = "opal-v1.schema.json"

_FILE = """\
# yaml-language-server: $schema=./{schema}
version: 1

dags:
  {dag_id}:
    # What the pipeline is for; shown in Airflow's list.
    description: Changes of {dag_id}
    # Cron, a preset, null (by hand), or {{table: shop.raw}}: whenever that table got a partition key.
    # A run works on the interval that just ended: its partition key, as 2026-11-01.
    schedule: "@daily"
    start_date: 2026-11-01
    table:
      name: shop.{table} # lies in <root>/shop/{table} of the connection opal_default
      keys: [id] # the primary key
      delta: updated_at # says when a change happened; of two changes of one key the later one wins
      deletes: "op = 'D'" # rows that meet this delete their key; take it out if there are none
    source:
      # A path or glob, or a list of them; or jdbc: {{url: ..., table: ..., user_env: ..., password_env: ...}}
      files: "{{{{ var.value.shop_source }}}}/{table}/{{{{ partition_key }}}}/*.json"
    # A function of yours that gets the rows of each partition key:
    # consumers:
    #   report: {{function: "shop_jobs:report", by: partition}}
    # Beside, in a pipeline of its own: merges small files, clusters, and deletes what no version of the last 30 days needs.
    # maintenance: {{zorder: [id], window: 30d, schedule: "@daily"}}
    retries: 2
    retry_delay: 1m
"""
_LOADER_TEXT = '''\
"""Makes the DAGs of the *.opal.yaml files in this folder."""

from airflow_provider_opal import load_yaml_dags

load_yaml_dags(__file__)
'''


def starter(dag_id: str) -> str:
    """The YAML file's text."""
    return _FILE.format(dag_id=dag_id, table=dag_id.replace(".", "_"), schema=SCHEMA)


def write_starter(name: str, folder: Path) -> list[Path]:
    """The YAML file, and loader and schema beside it where there are none; returns what was written. Overwrites nothing."""
    try:
        dag_id = identifier(name.removesuffix(SUFFIX))
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    path = folder / f"{dag_id}{SUFFIX}"
    _write_new(path, starter(dag_id))
    beside = {folder / LOADER: _LOADER_TEXT, folder / SCHEMA: schema_text()}
    written = [path]
    for target, text in beside.items():
        if not target.exists() and not (target.name == LOADER and _has_loader(folder)):
            _write_new(target, text)
            written.append(target)
    return written


def _has_loader(folder: Path) -> bool:
    return any(
        "load_yaml_dags" in module.read_text(encoding="utf-8", errors="replace")
        for module in folder.glob("*.py")
    )


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise InvalidInputError(
            f"{path} is there already and stays as it is; choose another name"
        ) from error
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written ({error.strerror}); name a folder that is there and yours with --folder"
        ) from error
