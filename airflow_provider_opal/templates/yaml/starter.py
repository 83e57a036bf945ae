"""The commented file that `opal dag new NAME` writes."""

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
    # The purpose of the pipeline; shown in Airflow's list.
    description: Changes of {dag_id}
    # Cron, a preset, null (by hand), or {{table: shop.raw}}: for each new partition key of that
    # table. A run works on the interval that just ended: its partition key, such as 2026-11-01.
    schedule: "@daily"
    start_date: 2026-11-01
    table:
      name: shop.{table} # lies in <root>/shop/{table} of the connection opal_default
      keys: [id] # the primary key
      delta: updated_at # when a change happened; of two changes of one key the later one wins
      deletes: "op = 'D'" # rows that meet this delete their key; remove the line if there are none
    source:
      # A path or glob, or a list of them; or
      # jdbc: {{url: ..., table: ..., user_env: ..., password_env: ...}}
      files: "{{{{ var.value.shop_source }}}}/{table}/{{{{ partition_key }}}}/*.json"
    # Your own function, which gets the rows of each partition key:
    # consumers:
    #   report: {{function: "shop_jobs:report", by: partition}}
    # Maintenance in a separate DAG: it merges small files, clusters rows, and deletes the files
    # that no version of the last 30 days needs.
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
    """Return the text of the YAML file."""
    return _FILE.format(dag_id=dag_id, table=dag_id.replace(".", "_"), schema=SCHEMA)


def write_starter(name: str, folder: Path) -> list[Path]:
    """Write the YAML file, and loader and schema next to it if they are missing.

    Returns the files that were written. Existing files are not overwritten.
    """
    try:
        dag_id = identifier(name.removesuffix(SUFFIX))
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    path = folder / f"{dag_id}{SUFFIX}"
    _write_new(path, starter(dag_id))
    written = [path]
    loader, schema = folder / LOADER, folder / SCHEMA
    if not loader.exists() and not _has_loader(folder):
        _write_new(loader, _LOADER_TEXT)
        written.append(loader)
    if not schema.exists():
        _write_new(schema, schema_text())
        written.append(schema)
    return written


def _has_loader(folder: Path) -> bool:
    modules = folder.glob("*.py")
    texts = (module.read_text(encoding="utf-8", errors="replace") for module in modules)
    return any("load_yaml_dags" in text for text in texts)


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise InvalidInputError(
            f"{path} exists already and stays as it is; choose another name"
        ) from error
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written ({error.strerror}); "
            "name an existing folder that you may write to with --folder"
        ) from error
