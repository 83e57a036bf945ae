"""Each mistake in a YAML file is reported once, with line, column and what to write. One case is one change of a good file."""

import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_opal.templates.yaml.files import found_files, read_yaml
from airflow_provider_opal.templates.yaml.models.version_1 import MaintenanceModel
from airflow_provider_opal.templates.yaml.text.problem import Problem, dotted
from opal_lake.arguments.values import span_text

DATA = Path(__file__).with_name("yaml")
GOOD = (DATA / "good.opal.yaml").read_text(encoding="utf-8")
TABLE = GOOD[GOOD.index("    table:") : GOOD.index("    source:")]
SOURCE = GOOD[GOOD.index("    source:") : GOOD.index("    consumers:")]
FILES = '"/in/orders/{{ partition_key }}/*.json"'
BOMB = "\n".join(
    f"x-{name}: &{name} [{', '.join([base] * 10)}]"
    for name, base in zip("abcde", ("1", "*a", "*b", "*c", "*d"), strict=True)
)
BOMB += "\ndefaults:"


def case(name: str, old: str, new: str, place: str, at: str, mend: str) -> object:
    """A change of the good file; where the problem lies, at what, and a part of what to write."""
    return pytest.param(old, new, place, at, mend, id=name)


def problems_of(text: str | bytes, folder: Path, name: str = "shop.opal.yaml") -> list[Problem]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path, folder).problems


CASES = [
    case(
        "version_absent", "version: 1\n", "", "1:1", "version", "add 'version: 1' as the first line"
    ),
    case(
        "version_unknown",
        "version: 1",
        "version: 2",
        "1:10",
        "version",
        "write 'version: 1', or install a newer airflow-provider-opal",
    ),
    case(
        "version_text",
        "version: 1",
        'version: "1"',
        "1:10",
        "version",
        "write 'version: 1', or install a newer airflow-provider-opal",
    ),
    case(
        "version_true",
        "version: 1",
        "version: true",
        "1:10",
        "version",
        "write 'version: 1', or install a newer airflow-provider-opal",
    ),
    case(
        "version_misspelt",
        "version: 1",
        "verion: 1",
        "1:1",
        "version",
        "rename 'verion' to 'version'",
    ),
    case("top_key_unknown", "defaults:", "default:", "2:1", "default", "did you mean 'defaults'?"),
    case("dags_absent", "dags:", "x-dags:", "1:1", "dags", "add 'dags: {orders: {...}}'"),
    case(
        "dags_empty",
        GOOD[GOOD.index("dags:") :],
        "dags: {}\n",
        "4:7",
        "dags",
        "write {orders: {...}}",
    ),
    case(
        "dags_list",
        GOOD[GOOD.index("dags:") :],
        "dags: [orders]\n",
        "4:7",
        "dags",
        "write {orders: {...}}",
    ),
    case(
        "dags_nothing",
        GOOD[GOOD.index("dags:") :],
        "dags:\n",
        "4:6",
        "dags",
        "write {orders: {...}}, or take the key out",
    ),
    case(
        "dag_list",
        GOOD[GOOD.index("    schedule") :],
        "    - schedule\n",
        "6:5",
        "dags.orders",
        "write a pipeline: {table: ..., source: ..., schedule: ...,",
    ),
    case(
        "dag_nothing",
        GOOD[GOOD.index("    schedule") :],
        "",
        "5:10",
        "dags.orders",
        "write a pipeline: {table: ..., source: ..., schedule: ...,",
    ),
    case("defaults_text", "  retries: 3\n", "  three\n", "3:3", "defaults", "write {retries: 3}"),
    case(
        "defaults_unknown",
        "  retries: 3",
        "  retry: 3",
        "3:3",
        "defaults.retry",
        "did you mean 'retries'?",
    ),
    case(
        "defaults_table",
        "  retries: 3",
        "  table: shop.orders",
        "3:3",
        "defaults.table",
        "it belongs under a pipeline",
    ),
    case(
        "retries_text",
        "retries: 3",
        'retries: "3"',
        "3:12",
        "defaults.retries",
        "write 3 without quotes",
    ),
    case(
        "retries_underscore",
        "retries: 3",
        "retries: 1_0",
        "3:12",
        "defaults.retries",
        "write 10 without quotes",
    ),
    case(
        "retries_octal",
        "retries: 3",
        "retries: 010",
        "3:12",
        "defaults.retries",
        "write 10 without quotes",
    ),
    case(
        "retries_negative",
        "retries: 3",
        "retries: -1",
        "3:12",
        "defaults.retries",
        "write at least 0",
    ),
    case("retries_fraction", "retries: 3", "retries: 1.5", "3:12", "defaults.retries", "write 3"),
    case(
        "retries_huge",
        "retries: 3",
        "retries: 99999999999999999999999",
        "3:12",
        "defaults.retries",
        "write it in quotes if it is a text",
    ),
    case(
        "retries_float_bomb",
        "retries: 3",
        "retries: 1e9999",
        "3:12",
        "defaults.retries",
        "write it in quotes if it is a text",
    ),
    case(
        "retries_many",
        "retries: 3",
        "retries: 5000",
        "3:12",
        "defaults.retries",
        "write at most 1,000",
    ),
    case(
        "dag_id_slash",
        "  orders:",
        "  shop/orders:",
        "5:3",
        "dags.shop/orders",
        "use letters, digits, '_', '-' and single dots, at most 150",
    ),
    case(
        "dag_id_up",
        "  orders:",
        "  ..:",
        "5:3",
        "dags...",
        "use letters, digits, '_', '-' and single dots, at most 150",
    ),
    case(
        "dag_id_path",
        "  orders:",
        "  ../../etc/passwd:",
        "5:3",
        "dags.../../etc/passwd",
        "use letters, digits, '_', '-' and single dots, at most 150",
    ),
    case(
        "dag_id_space",
        "  orders:",
        "  shop orders:",
        "5:3",
        "dags.shop orders",
        "use letters, digits, '_', '-' and single dots, at most 150",
    ),
    case(
        "dag_id_long",
        "  orders:",
        f"  {'o' * 151}:",
        "5:3",
        "dags.ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo…",
        "use letters, digits, '_', '-' and single dots, at most 150",
    ),
    case(
        "dag_twice",
        "    schedule:",
        "    schedule: null\n  orders:\n    schedule:",
        "7:3",
        "dags.orders",
        "keep one of them",
    ),
    case(
        "key_twice",
        "    schedule:",
        "    start_date: 2026-01-01\n    schedule:",
        "8:5",
        "dags.orders.start_date",
        "keep one of them",
    ),
    case(
        "schedule_absent",
        '    schedule: "@daily"\n',
        "",
        "5:3",
        "dags.orders.schedule",
        "add 'schedule: \"@daily\"'",
    ),
    case(
        "schedule_misspelt",
        "schedule:",
        "schedul:",
        "6:5",
        "dags.orders.schedul",
        "did you mean 'schedule'?",
    ),
    case(
        "schedule_airflow2",
        "schedule:",
        "schedule_interval:",
        "6:5",
        "dags.orders.schedule_interval",
        "did you mean 'schedule'?",
    ),
    case(
        "schedule_preset",
        '"@daily"',
        '"@dayly"',
        "6:15",
        "dags.orders.schedule",
        "did you mean '@daily'?",
    ),
    case(
        "schedule_once",
        '"@daily"',
        '"@once"',
        "6:15",
        "dags.orders.schedule",
        "write null, and trigger it by hand",
    ),
    case("schedule_none", '"@daily"', "None", "6:15", "dags.orders.schedule", "write null"),
    case("schedule_at_plain", '"@daily"', "@daily", "6:15", "", "put the text into quotes"),
    case(
        "cron_fields",
        '"@daily"',
        '"0 0 * *"',
        "6:15",
        "dags.orders.schedule",
        "write five fields, as '0 6 * * *', or one of @hourly,",
    ),
    case(
        "cron_range",
        '"@daily"',
        '"0 25 * * *"',
        "6:15",
        "dags.orders.schedule",
        "write it as '0 6 * * *': minute hour day month weekday",
    ),
    case(
        "cron_words",
        '"@daily"',
        '"every day at six oclock"',
        "6:15",
        "dags.orders.schedule",
        "write it as '0 6 * * *': minute hour day month weekday",
    ),
    case(
        "cron_never",
        '"@daily"',
        '"0 0 30 2 *"',
        "6:15",
        "dags.orders.schedule",
        "write it as '0 6 * * *': minute hour day month weekday",
    ),
    case(
        "schedule_number",
        '"@daily"',
        "5",
        "6:15",
        "dags.orders.schedule",
        "put it into quotes: '5'",
    ),
    case(
        "schedule_list",
        '"@daily"',
        "[shop.raw]",
        "6:15",
        "dags.orders.schedule",
        'write "@daily", null or {table: shop.raw}',
    ),
    case(
        "schedule_asset_unknown",
        '"@daily"',
        "{tabel: shop.raw}",
        "6:16",
        "dags.orders.schedule.tabel",
        "did you mean 'table'?",
    ),
    case(
        "schedule_table_path",
        '"@daily"',
        "{table: ../raw}",
        "6:23",
        "dags.orders.schedule.table",
        "write 'shop.orders', or a whole path without '.' and '..'",
    ),
    case(
        "start_absent",
        "    start_date: 2026-11-01\n",
        "",
        "5:3",
        "dags.orders.start_date",
        "add 'start_date: 2026-11-01' here or under 'defaults'",
    ),
    case(
        "start_month",
        "2026-11-01",
        "2026-13-01",
        "7:17",
        "dags.orders.start_date",
        "write a day that exists, as 2026-11-01",
    ),
    case(
        "start_day",
        "2026-11-01",
        "2026-02-30",
        "7:17",
        "dags.orders.start_date",
        "write a day that exists, as 2026-11-01",
    ),
    case(
        "start_slashes",
        "2026-11-01",
        "01/11/2026",
        "7:17",
        "dags.orders.start_date",
        "write it as 2026-11-01 or 2026-11-01T06:00",
    ),
    case(
        "start_number",
        "2026-11-01",
        "20261101",
        "7:17",
        "dags.orders.start_date",
        "write 2026-11-01 or 2026-11-01T06:00",
    ),
    case(
        "start_year",
        "2026-11-01",
        "0001-01-01",
        "7:17",
        "dags.orders.start_date",
        "write one from 1970 to 2199",
    ),
    case(
        "start_time",
        "2026-11-01",
        "12:30:00",
        "7:17",
        "dags.orders.start_date",
        "write it as 2026-11-01 or 2026-11-01T06:00",
    ),
    case(
        "end_before",
        "    table:",
        "    end_date: 2026-10-01\n    table:",
        "8:15",
        "dags.orders.end_date",
        "write a later day, or take it out",
    ),
    case(
        "timezone",
        "    table:",
        "    timezone: Europe/Berln\n    table:",
        "8:15",
        "dags.orders.timezone",
        "did you mean 'Europe/Berlin'?",
    ),
    case(
        "timezone_case",
        "    table:",
        "    timezone: europe/berlin\n    table:",
        "8:15",
        "dags.orders.timezone",
        "did you mean 'Europe/Berlin'?",
    ),
    case(
        "timezone_path",
        "    table:",
        "    timezone: ../../etc/passwd\n    table:",
        "8:15",
        "dags.orders.timezone",
        "write a name of the IANA database, as 'UTC' or",
    ),
    case(
        "timezone_offset",
        "    table:",
        "    timezone: +01:00\n    table:",
        "8:15",
        "dags.orders.timezone",
        "write a name of the IANA database, as 'UTC' or",
    ),
    case(
        "catchup_no",
        "    table:",
        "    catchup: no\n    table:",
        "8:14",
        "dags.orders.catchup",
        "write false without quotes",
    ),
    case(
        "catchup_text",
        "    table:",
        "    catchup: 'true'\n    table:",
        "8:14",
        "dags.orders.catchup",
        "write true without quotes",
    ),
    case(
        "duration_number",
        "    table:",
        "    retry_delay: 5\n    table:",
        "8:18",
        "dags.orders.retry_delay",
        "write '10m', '2h' or '30d'",
    ),
    case(
        "duration_unit",
        "    table:",
        "    retry_delay: 5 minutes\n    table:",
        "8:18",
        "dags.orders.retry_delay",
        "write it as '90s', '10m', '1h30m', '30d' or '2w'",
    ),
    case(
        "duration_sexagesimal",
        "    table:",
        "    retry_delay: 1:30\n    table:",
        "8:18",
        "dags.orders.retry_delay",
        "write it as '90s', '10m', '1h30m', '30d' or '2w'",
    ),
    case(
        "duration_long",
        "    table:",
        "    retry_delay: 900000w\n    table:",
        "8:18",
        "dags.orders.retry_delay",
        "write a shorter duration",
    ),
    case("table_absent", TABLE, "", "5:3", "dags.orders.table", "add 'table: shop.orders'"),
    case(
        "table_name_absent",
        "      name: shop.orders\n",
        "",
        "8:5",
        "dags.orders.table.name",
        "add 'name: shop.orders'",
    ),
    case(
        "table_keys_text",
        "keys: [order_id]",
        "keys: order_id",
        "10:13",
        "dags.orders.table.keys",
        "write [order_id]",
    ),
    case(
        "table_keys_number",
        "keys: [order_id]",
        "keys: [1]",
        "10:14",
        "dags.orders.table.keys[0]",
        "put it into quotes: '1'",
    ),
    case(
        "table_keys_null",
        "keys: [order_id]",
        "keys: [null]",
        "10:14",
        "dags.orders.table.keys[0]",
        "write a name, or take the key out",
    ),
    case(
        "table_keys_empty",
        "keys: [order_id]",
        "keys: []",
        "10:13",
        "dags.orders.table.keys",
        "write [order_id]",
    ),
    case(
        "table_keys_twice",
        "keys: [order_id]",
        "keys: [a, a]",
        "10:13",
        "dags.orders.table.keys",
        "take one out",
    ),
    case(
        "table_keys_absent",
        "      keys: [order_id]\n",
        "",
        "9:7",
        "dags.orders.table",
        "add 'keys: [order_id]' and 'delta: updated_at', or write",
    ),
    case(
        "table_key_misspelt",
        "      keys:",
        "      key:",
        "10:7",
        "dags.orders.table.key",
        "did you mean 'keys'?",
    ),
    case(
        "table_delta_key",
        "delta: updated_at",
        "delta: order_id",
        "11:14",
        "dags.orders.table.delta",
        "name the column that says when a row changed",
    ),
    case(
        "table_delta_absent",
        "      delta: updated_at\n",
        "",
        "9:7",
        "dags.orders.table",
        "add 'keys: [order_id]' and 'delta: updated_at', or write",
    ),
    case(
        "table_delta_true",
        "delta: updated_at",
        "delta: true",
        "11:14",
        "dags.orders.table.delta",
        "put it into quotes: 'true'",
    ),
    case(
        "table_format",
        "      delta:",
        "      file_format: parket\n      delta:",
        "11:20",
        "dags.orders.table.file_format",
        "did you mean 'parquet'?",
    ),
    case(
        "table_schema_no_key",
        "      delta:",
        "      schema: order_ID BIGINT, updated_at TIMESTAMP\n      delta:",
        "10:14",
        "dags.orders.table.keys[0]",
        "did you mean 'order_ID'?",
    ),
    case(
        "table_schema_no_delta",
        "      delta:",
        "      schema: order_id BIGINT, at TIMESTAMP\n      delta:",
        "12:14",
        "dags.orders.table.delta",
        "known are 'order_id', 'at'",
    ),
    case(
        "table_schema_no_type",
        "      delta:",
        "      schema: order_id, updated_at TIMESTAMP\n      delta:",
        "11:15",
        "dags.orders.table.schema",
        "write it as 'id BIGINT, at TIMESTAMP'",
    ),
    case(
        "table_schema_open",
        "      delta:",
        "      schema: order_id BIGINT, s STRUCT<a INT, updated_at TIMESTAMP\n      delta:",
        "11:15",
        "dags.orders.table.schema",
        "close it",
    ),
    case(
        "table_schema_partition",
        "      delta:",
        "      schema: order_id BIGINT, updated_at TIMESTAMP\n      partition_by: [day]\n      delta:",
        "12:22",
        "dags.orders.table.partition_by[0]",
        "known are 'order_id', 'updated_at'",
    ),
    case(
        "table_name_up",
        "shop.orders",
        "../shop/orders",
        "9:13",
        "dags.orders.table.name",
        "write 'shop.orders', or a whole path without '.' and '..'",
    ),
    case(
        "table_name_dots",
        "shop.orders",
        "shop..orders",
        "9:13",
        "dags.orders.table.name",
        "write 'shop.orders', or a whole path without '.' and '..'",
    ),
    case(
        "table_name_blank",
        "shop.orders",
        "shop orders",
        "9:13",
        "dags.orders.table.name",
        "write 'shop.orders': letters, digits, '_', '.', '=' and '-'",
    ),
    case(
        "table_misplaced",
        "    source:\n",
        "    keys: [order_id]\n    source:\n",
        "12:5",
        "dags.orders.keys",
        "it belongs under 'table:'",
    ),
    case(
        "source_absent",
        SOURCE,
        "",
        "5:3",
        "dags.orders.source",
        "add 'source: {files: \"s3a://in/orders/{{ partition_key",
    ),
    case(
        "source_text",
        SOURCE,
        "    source: /in/*.json\n",
        "12:13",
        "dags.orders.source",
        'write {files: "s3a://in/orders/{{ partition_key }}/*.json"}',
    ),
    case(
        "source_both",
        "    consumers:",
        "      jdbc: {url: 'jdbc:postgresql://h/d', table: t}\n    consumers:",
        "13:7",
        "dags.orders.source",
        "give one of 'files', 'jdbc' and 'kafka'",
    ),
    case(
        "source_none",
        "      files:",
        "      # files:",
        "12:12",
        "dags.orders.source",
        'write {files: "s3a://in/orders/{{ partition_key',
    ),
    case(
        "source_unknown",
        "      files:",
        "      file:",
        "13:7",
        "dags.orders.source.file",
        "did you mean 'files'?",
    ),
    case(
        "source_kinesis",
        "      files:",
        "      kinesis:",
        "13:7",
        "dags.orders.source.kinesis",
        "known are 'files', 'jdbc', 'kafka'",
    ),
    case(
        "files_number", FILES, "5", "13:14", "dags.orders.source.files", "put it into quotes: '5'"
    ),
    case(
        "files_list_number",
        FILES,
        "[5]",
        "13:15",
        "dags.orders.source.files[0]",
        "put it into quotes: '5'",
    ),
    case(
        "files_list_empty",
        FILES,
        "[]",
        "13:14",
        "dags.orders.source.files",
        'write "s3a://in/orders/{{ partition_key }}/*.json"',
    ),
    case(
        "files_format",
        FILES,
        "{paths: /in/x, format: jsn}",
        "13:37",
        "dags.orders.source.files.format",
        "did you mean 'json'?",
    ),
    case(
        "files_no_paths",
        FILES,
        "{path: /in/x, format: json}",
        "13:15",
        "dags.orders.source.files.path",
        "did you mean 'paths'?",
    ),
    case(
        "files_secret",
        FILES,
        "{paths: /in/x, format: json, options: {password: x}}",
        "13:52",
        "dags.orders.source.files.options",
        "put it into a connection of Airflow",
    ),
    case(
        "jdbc_password",
        'files: "/in/orders/{{ partition_key }}/*.json"',
        "jdbc: {url: 'jdbc:postgresql://u:p@h/d', table: t}",
        "13:7",
        "dags.orders.source",
        "take it out and name an environment variable:",
    ),
    case(
        "jdbc_both",
        'files: "/in/orders/{{ partition_key }}/*.json"',
        "jdbc: {url: 'jdbc:postgresql://h/d', table: t, query: q}",
        "13:7",
        "dags.orders.source",
        "give one of them",
    ),
    case(
        "jdbc_no_url",
        'files: "/in/orders/{{ partition_key }}/*.json"',
        "jdbc: {table: t}",
        "13:7",
        "dags.orders.source.jdbc.url",
        "add 'url: jdbc:postgresql://host:5432/database'",
    ),
    case(
        "template_ds",
        "{{ partition_key }}",
        "{{ ds }}",
        "13:14",
        "dags.orders.source.files",
        "write '{{ partition_key }}'",
    ),
    case(
        "template_logical",
        "{{ partition_key }}",
        "{{ logical_date.year }}",
        "13:14",
        "dags.orders.source.files",
        "write '{{ partition_key }}'",
    ),
    case(
        "template_interval",
        "{{ partition_key }}",
        "{{ data_interval_start | ds }}",
        "13:14",
        "dags.orders.source.files",
        "write '{{ partition_key }}'",
    ),
    case(
        "template_unknown",
        "{{ partition_key }}",
        "{{ partition_ky }}",
        "13:14",
        "dags.orders.source.files",
        "did you mean 'partition_key'?",
    ),
    case(
        "template_open",
        "{{ partition_key }}",
        "{{ partition_key }",
        "13:14",
        "dags.orders.source.files",
        "write it as '{{ partition_key }}'",
    ),
    case(
        "template_single",
        "{{ partition_key }}",
        "{partition_key}{{ var.value.x }}",
        "13:14",
        "dags.orders.source.files",
        "write '{{ partition_key }}'",
    ),
    case(
        "template_unquoted",
        FILES,
        "{{ partition_key }}/*.json",
        "13:33",
        "",
        "line the key up with its others",
    ),
    case(
        "consumer_no_function",
        '{function: "shop.jobs:revenue"}',
        "{}",
        "15:7",
        "dags.orders.consumers.revenue.function",
        "add 'function: \"shop.jobs:revenue\"'",
    ),
    case(
        "consumer_dotted",
        "shop.jobs:revenue",
        "shop.jobs.revenue",
        "15:27",
        "dags.orders.consumers.revenue.function",
        "did you mean 'shop.jobs:revenue'?",
    ),
    case(
        "consumer_call",
        "shop.jobs:revenue",
        "shop.jobs:revenue()",
        "15:27",
        "dags.orders.consumers.revenue.function",
        "did you mean 'shop.jobs:revenue'?",
    ),
    case(
        "consumer_file",
        "shop.jobs:revenue",
        "shop/jobs.py:revenue",
        "15:27",
        "dags.orders.consumers.revenue.function",
        "did you mean 'shop.jobs:revenue'?",
    ),
    case(
        "consumer_os",
        "shop.jobs:revenue",
        "os:system",
        "15:27",
        "dags.orders.consumers.revenue.function",
        "write one of your own modules, as 'shop.jobs:revenue'",
    ),
    case(
        "consumer_builtins",
        "shop.jobs:revenue",
        "builtins:eval",
        "15:27",
        "dags.orders.consumers.revenue.function",
        "write one of your own modules, as 'shop.jobs:revenue'",
    ),
    case(
        "consumer_private",
        "shop.jobs:revenue",
        "shop.jobs:_revenue",
        "15:27",
        "dags.orders.consumers.revenue.function",
        "name a public function, as 'shop.jobs:revenue'",
    ),
    case(
        "consumer_dunder",
        "shop.jobs:revenue",
        "shop.jobs:__import__",
        "15:27",
        "dags.orders.consumers.revenue.function",
        "name a public function, as 'shop.jobs:revenue'",
    ),
    case(
        "consumer_by",
        '{function: "shop.jobs:revenue"}',
        "{function: 'shop.jobs:revenue', by: versions}",
        "15:52",
        "dags.orders.consumers.revenue.by",
        "did you mean 'version'?",
    ),
    case(
        "consumer_rows",
        '{function: "shop.jobs:revenue"}',
        "{function: 'shop.jobs:revenue', rows: changes}",
        "15:54",
        "dags.orders.consumers.revenue.rows",
        "are changes, which need a consumer by version; add 'by: version'",
    ),
    case(
        "consumer_reserved",
        "revenue: {",
        "metagen: {",
        "15:7",
        "dags.orders.consumers.metagen",
        "choose another, as 'metagen_rows'",
    ),
    case(
        "consumer_slash",
        "revenue: {",
        "a/b: {",
        "15:7",
        "dags.orders.consumers.a/b",
        "use letters, digits, '_' and '-', at most 60, as 'revenue'",
    ),
    case(
        "consumer_own_dag",
        '{function: "shop.jobs:revenue"}',
        "{function: 'shop.jobs:revenue', own_dag: on}",
        "15:57",
        "dags.orders.consumers.revenue.own_dag",
        "write true without quotes",
    ),
    case(
        "consumer_secret",
        '{function: "shop.jobs:revenue"}',
        "{function: 'shop.jobs:revenue', arguments: {password: x}}",
        "15:59",
        "dags.orders.consumers.revenue.arguments",
        "name a connection instead",
    ),
    case(
        "maintenance_yes",
        "    consumers:",
        "    maintenance: yes\n    consumers:",
        "14:18",
        "dags.orders.maintenance",
        "write true without quotes",
    ),
    case(
        "maintenance_number",
        "    consumers:",
        "    maintenance: 30\n    consumers:",
        "14:18",
        "dags.orders.maintenance",
        "write true or false",
    ),
    case(
        "maintenance_list",
        "    consumers:",
        "    maintenance: [compact]\n    consumers:",
        "14:18",
        "dags.orders.maintenance",
        "write true or {window: 30d, zorder: [customer_id]}",
    ),
    case(
        "maintenance_unknown",
        "    consumers:",
        "    maintenance: {windw: 30d}\n    consumers:",
        "14:19",
        "dags.orders.maintenance.windw",
        "did you mean 'window'?",
    ),
    case(
        "maintenance_zorder_name",
        "    consumers:",
        "    maintenance: {z_order: [order_id]}\n    consumers:",
        "14:19",
        "dags.orders.maintenance.z_order",
        "did you mean 'zorder'?",
    ),
    case(
        "maintenance_elsewhere",
        "    consumers:",
        "    maintenance: {retries: 3}\n    consumers:",
        "14:19",
        "dags.orders.maintenance.retries",
        "it belongs under a pipeline",
    ),
    case(
        "maintenance_window",
        "    consumers:",
        "    maintenance: {window: 30}\n    consumers:",
        "14:27",
        "dags.orders.maintenance.window",
        "write '10m', '2h' or '30d'",
    ),
    case(
        "maintenance_window_unit",
        "    consumers:",
        "    maintenance: {window: 30 days}\n    consumers:",
        "14:27",
        "dags.orders.maintenance.window",
        "write it as '90s', '10m', '1h30m', '30d' or '2w'",
    ),
    case(
        "maintenance_look_back",
        "    consumers:",
        "    maintenance: {look_back: a month}\n    consumers:",
        "14:30",
        "dags.orders.maintenance.look_back",
        "write it as '90s', '10m', '1h30m', '30d' or '2w'",
    ),
    case(
        "maintenance_look_back_negative",
        "    consumers:",
        "    maintenance: {look_back: -1}\n    consumers:",
        "14:30",
        "dags.orders.maintenance.look_back",
        "write a whole number of at least 0, or '90d'",
    ),
    case(
        "maintenance_zorder_text",
        "    consumers:",
        "    maintenance: {zorder: order_id}\n    consumers:",
        "14:27",
        "dags.orders.maintenance.zorder",
        "write [order_id]",
    ),
    case(
        "maintenance_zorder_empty",
        "    consumers:",
        "    maintenance: {zorder: []}\n    consumers:",
        "14:27",
        "dags.orders.maintenance.zorder",
        "write [customer_id, created_at]",
    ),
    case(
        "maintenance_zorder_twice",
        "    consumers:",
        "    maintenance: {zorder: [a, a]}\n    consumers:",
        "14:27",
        "dags.orders.maintenance.zorder",
        "take one out",
    ),
    case(
        "maintenance_zorder_many",
        "    consumers:",
        "    maintenance: {zorder: [a, b, c, d, e, f, g, h, i]}\n    consumers:",
        "14:27",
        "dags.orders.maintenance.zorder",
        "it has 9 members; write at most 8",
    ),
    case(
        "maintenance_share",
        "    consumers:",
        "    maintenance: {dead_share: 120}\n    consumers:",
        "14:31",
        "dags.orders.maintenance.dead_share",
        "write at most 100",
    ),
    case(
        "maintenance_codec",
        "    consumers:",
        "    maintenance: {archive_codec: gzip}\n    consumers:",
        "14:34",
        "dags.orders.maintenance.archive_codec",
        "write 'zstd:1' to 'zstd:22'",
    ),
    case(
        "maintenance_schedule",
        "    consumers:",
        "    maintenance: {schedule: '@dayly'}\n    consumers:",
        "14:29",
        "dags.orders.maintenance.schedule",
        "did you mean '@daily'?",
    ),
    case(
        "maintenance_approve",
        "    consumers:",
        "    maintenance: {approve: yes}\n    consumers:",
        "14:28",
        "dags.orders.maintenance.approve",
        "write true without quotes",
    ),
    case(
        "maintenance_default",
        "  retries: 3",
        "  maintenance: {windows: 30d}",
        "3:17",
        "defaults.maintenance.windows",
        "did you mean 'window'?",
    ),
    case(
        "schedule_nearby",
        "    schedule:",
        "    maintenence: true\n    schedule:",
        "6:5",
        "dags.orders.maintenence",
        "did you mean 'maintenance'?",
    ),
    case(
        "maintenance_zorder_absent",
        TABLE,
        TABLE
        + "      schema: order_id BIGINT, updated_at TIMESTAMP, total INT\n    maintenance: {zorder: [order_id, totl]}\n",
        "13:38",
        "dags.orders.maintenance.zorder[1]",
        "did you mean 'total'?",
    ),
    case(
        "on_empty",
        "    consumers:",
        "    on_empty: skip\n    consumers:",
        "14:15",
        "dags.orders.on_empty",
        "use one of 'fail', 'accept'",
    ),
    case(
        "on_bad_rows_list",
        "    consumers:",
        "    on_bad_rows: [fail]\n    consumers:",
        "14:18",
        "dags.orders.on_bad_rows",
        "use one of 'fail', 'quarantine'",
    ),
    case(
        "business_snapshot_twice",
        "    consumers:",
        "    business_snapshot: '{{ partition_key }}'\n    business_snapshot_column: day\n    consumers:",
        "15:31",
        "dags.orders.business_snapshot_column",
        "take one out",
    ),
    case(
        "business_snapshot_of_a_day",
        "    consumers:",
        "    business_snapshot: '{{ ds }}'\n    consumers:",
        "14:24",
        "dags.orders.business_snapshot",
        "write '{{ partition_key }}'",
    ),
    case(
        "metadata_later",
        "    consumers:",
        "    metadata: later\n    consumers:",
        "14:15",
        "dags.orders.metadata",
        "'batch', 'inline'",
    ),
    case(
        "conn_slash",
        "    consumers:",
        "    opal_conn_id: a/b\n    consumers:",
        "14:19",
        "dags.orders.opal_conn_id",
        "write its id, as 'opal_default'",
    ),
    case(
        "spark_unknown",
        "    consumers:",
        "    spark: {executor_memry: 4g}\n    consumers:",
        "14:13",
        "dags.orders.spark.executor_memry",
        "did you mean 'executor_memory'?",
    ),
    case(
        "spark_misplaced",
        "    consumers:",
        "    executor_memory: 4g\n    consumers:",
        "14:5",
        "dags.orders.executor_memory",
        "it belongs under 'spark:'",
    ),
    case(
        "spark_command",
        "    consumers:",
        "    spark: {post_submit_commands: [rm]}\n    consumers:",
        "14:13",
        "dags.orders.spark.post_submit_commands",
        "take it out; `opal dag schema` lists the known names",
    ),
    case(
        "spark_secret",
        "    consumers:",
        "    spark: {conf: {spark.hadoop.fs.s3a.secret.key: x}}\n    consumers:",
        "14:19",
        "dags.orders.spark.conf",
        "put it into a connection of Airflow",
    ),
    case(
        "spark_number",
        "    consumers:",
        "    spark: {executor_memory: 4}\n    consumers:",
        "14:30",
        "dags.orders.spark.executor_memory",
        "put it into quotes: '4'",
    ),
    case(
        "tags_text",
        "    consumers:",
        "    tags: shop\n    consumers:",
        "14:11",
        "dags.orders.tags",
        "write [shop]",
    ),
    case(
        "tag_long",
        "    consumers:",
        f"    tags: [{'t' * 101}]\n    consumers:",
        "14:12",
        "dags.orders.tags[0]",
        "write less",
    ),
    case(
        "description_list",
        "    consumers:",
        "    description: [a]\n    consumers:",
        "14:18",
        "dags.orders.description",
        "write a value",
    ),
    case(
        "python_tag",
        "shop.orders",
        "!!python/object/apply:os.system ['true']",
        "9:13",
        "dags.orders.table.name",
        "write plain values, texts in quotes",
    ),
    case(
        "own_tag",
        "shop.orders",
        "!secret x",
        "9:13",
        "dags.orders.table.name",
        "write plain values, texts in quotes",
    ),
    case(
        "str_tag",
        "retries: 3",
        "retries: !!str 3",
        "3:12",
        "defaults.retries",
        "write plain values, texts in quotes",
    ),
    case(
        "binary_tag",
        "shop.orders",
        "!!binary aGk=",
        "9:13",
        "dags.orders.table.name",
        "write plain values, texts in quotes",
    ),
    case(
        "two_documents",
        "dags:\n",
        "---\ndags:\n",
        "4:1",
        "",
        "take out the line '---', or use a file of its own",
    ),
    case("tab", "  retries: 3", "\tretries: 3", "3:1", "", "use spaces"),
    case(
        "list_open", "[order_id]", "[order_id", "11:12", "", "write ']', and ',' between its items"
    ),
    case(
        "brace_open",
        'revenue: {function: "shop.jobs:revenue"}',
        "revenue: {function: x",
        "15:16",
        "",
        "write '}', and ',' between the members",
    ),
    case("quote_open", '"@daily"', '"@daily', "13:15", "", "line the key up with its others"),
    case(
        "colon",
        "name: shop.orders",
        "name: shop: orders",
        "9:17",
        "",
        "put the text into quotes, or line the key up with the others",
    ),
    case("indent", "      keys:", "     keys:", "10:6", "", "line the key up with its others"),
    case("escape", '"@daily"', '"\\d"', "6:16", "", "write it twice, or use 'single quotes'"),
    case("escape_control", '"@daily"', '"\\0"', "6:15", "dags.orders.schedule", "take it out"),
    case(
        "alias_undefined",
        '"@daily"',
        "*daily",
        "6:15",
        "",
        "put the anchor first, or the text into quotes",
    ),
    case(
        "alias_cycle",
        'revenue: {function: "shop.jobs:revenue"}',
        "revenue: &a {function: *a}",
        "15:30",
        "",
        "put the anchor first, or the text into quotes",
    ),
    case("alias_bomb", "defaults:", BOMB, "5:6", "", "write less into one file"),
    case(
        "deep", "defaults:", f"x-a: {'[' * 30}{']' * 30}\ndefaults:", "2:25", "", "write it flatter"
    ),
    case(
        "very_deep", "defaults:", f"x-a: {'[' * 100_000}\ndefaults:", "2:25", "", "write it flatter"
    ),
    case("control", "shop.orders", "shop\x07orders", "9:17", "", "delete it"),
    case("bidi", "shop.orders", "shop\u202eorders", "9:17", "", "delete it"),
    case("line_separator", "shop.orders", "shop\u2028orders", "9:17", "", "delete it"),
    case("null_byte", "shop.orders", "shop\x00orders", "9:17", "", "delete it"),
    case(
        "merge_text",
        "    schedule:",
        "    <<: orders\n    schedule:",
        "6:9",
        "dags.orders",
        "give it the alias of one, as '<<: *base'",
    ),
    case(
        "mapping_key",
        "    schedule:",
        "    {a: 1}: x\n    schedule:",
        "6:5",
        "dags.orders",
        "put a template into quotes: '{{ ... }}'",
    ),
    case(
        "empty_key",
        "    schedule:",
        "    '': x\n    schedule:",
        "6:5",
        "dags.orders",
        "write a name",
    ),
    case("directive", "version: 1", "%YAML 9.9\n---\nversion: 1", "1:1", "", "take the line out"),
    case("top_list", GOOD, "- version: 1\n", "1:1", "", "begin with 'version: 1' and 'dags:'"),
    case("top_text", GOOD, "version\n", "1:1", "", "begin with 'version: 1' and 'dags:'"),
    case("empty", GOOD, "", "1:1", "", "`opal dag new orders` writes one to begin with"),
    case(
        "comment", GOOD, "# nothing\n", "1:1", "", "`opal dag new orders` writes one to begin with"
    ),
    case("large", GOOD, "# " + "x" * 262_145, "1:1", "", "split it into several *.opal.yaml files"),
    case(
        "template_bomb",
        "{{ partition_key }}",
        "{{ 9**9**9 }}{{ ds }}",
        "13:14",
        "dags.orders.source.files",
        "write '{{ partition_key }}'",
    ),
    case(
        "cron_random",
        '"@daily"',
        '"R R * * *"',
        "6:15",
        "dags.orders.schedule",
        "write numbers, as '17 3 * * *'",
    ),
    case(
        "cron_long",
        '"@daily"',
        f'"{"0," * 500}0 * * * *"',
        "6:15",
        "dags.orders.schedule",
        "write a cron expression, as '0 6 * * *'",
    ),
    case(
        "timezone_long",
        "    table:",
        f"    timezone: {'a' * 5000}\n    table:",
        "8:15",
        "dags.orders.timezone",
        "write a name of the IANA database, as 'UTC' or",
    ),
    case(
        "jdbc_option_secret",
        'files: "/in/orders/{{ partition_key }}/*.json"',
        "jdbc: {url: 'jdbc:postgresql://h/d', table: t, options: {accessToken: x}}",
        "13:63",
        "dags.orders.source.jdbc.options",
        "put it into a connection of Airflow",
    ),
    case(
        "two_faults_in_a_template",
        "{{ partition_key }}",
        "{{ dss }}",
        "13:14",
        "dags.orders.source.files",
        "write '{{ partition_key }}', or a Variable as '{{",
    ),
]


def test_the_good_file_is_good(tmp_path: Path) -> None:
    assert problems_of(GOOD, tmp_path) == []


@pytest.mark.parametrize("old, new, place, at, mend", CASES)
def test_a_mistake_is_reported_once_with_its_position_and_mend(
    old: str, new: str, place: str, at: str, mend: str, tmp_path: Path
) -> None:
    assert old in GOOD
    started = time.monotonic()
    [problem] = problems_of(GOOD.replace(old, new, 1), tmp_path)
    assert time.monotonic() - started < 5
    assert f"{problem.position.line}:{problem.position.column}" == place
    assert dotted(problem.at).startswith(at)
    assert mend in problem.what
    assert str(problem).startswith(f"shop.opal.yaml:{place}: ")
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    "data, place, mend",
    [
        pytest.param(GOOD.encode("utf-16"), "1:1", "save it as UTF-8", id="utf-16"),
        pytest.param(GOOD.encode("utf-32"), "1:1", "save it as UTF-8", id="utf-32"),
        pytest.param(
            GOOD.replace("shop.orders", "bücher").encode("latin-1"),
            "9:14",
            "0xfc is no UTF-8; save the file as UTF-8",
            id="latin-1",
        ),
        pytest.param(b"version: 1\n\x80", "2:1", "save the file as UTF-8", id="not-text"),
    ],
)
def test_other_encodings_are_refused_where_they_show(
    data: bytes, place: str, mend: str, tmp_path: Path
) -> None:
    [problem] = problems_of(data, tmp_path)
    assert (f"{problem.position.line}:{problem.position.column}", mend in problem.what) == (
        place,
        True,
    )


def test_a_byte_order_mark_of_utf_8_does_no_harm(tmp_path: Path) -> None:
    assert problems_of(GOOD.encode("utf-8-sig"), tmp_path) == []


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    assert problems_of(GOOD.replace("\n", "\r\n"), tmp_path) == []
    [problem] = problems_of(
        GOOD.replace("retries: 3", "retries: x").replace("\n", "\r\n"), tmp_path
    )
    assert problem.position.line == 3


def test_all_mistakes_of_a_file_are_reported_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = (
        GOOD.replace("retries: 3", "retris: 3")
        .replace("[order_id]", "order_id")
        .replace("shop.jobs:revenue", "revenue")
    )
    found = problems_of(text, tmp_path)
    assert [(problem.position.line, problem.dag_id) for problem in found] == [
        (3, None),
        (10, "orders"),
        (15, "orders"),
    ]


def test_what_yaml_1_1_takes_for_other_things_stays_text(tmp_path: Path) -> None:
    text = GOOD.replace("[order_id]", "[no, on, 12:30:00, 2026-11-01, 1_000]")
    assert problems_of(text, tmp_path) == []
    dag = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"]
    assert dag.table.keys == ["no", "on", "12:30:00", "2026-11-01", "1_000"]  # type: ignore[union-attr]  # it is a mapping there


@pytest.mark.parametrize(
    "start",
    [
        "2026-11-01",
        "'2026-11-01'",
        "2026-11-01 06:00:00",
        '"2026-11-01T06:00"',
        "2026-11-01T06:00:00+02:00",
    ],
)
def test_a_day_may_be_written_with_and_without_quotes(start: str, tmp_path: Path) -> None:
    assert problems_of(GOOD.replace("2026-11-01", start), tmp_path) == []


def test_anchors_and_merges_work_and_what_is_given_counts(tmp_path: Path) -> None:
    text = """\
x-base: &base {schedule: "@hourly", start_date: 2026-11-01, source: &in {files: "/in/{{ partition_key }}/*.json"}}
version: 1
dags:
  a: {<<: *base, table: shop.a}
  b: {<<: [*base], table: shop.b, schedule: null, source: *in}
"""
    assert problems_of(text, tmp_path) == []
    dags = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags
    assert (dags["a"].schedule, dags["b"].schedule, dags["b"].table_name) == (
        "@hourly",
        None,
        "shop.b",
    )


def test_a_mistake_in_an_anchor_is_reported_at_the_anchor(tmp_path: Path) -> None:
    text = """\
x-base: &base
  schedule: "@houry"
version: 1
dags:
  a: {<<: *base, start_date: 2026-11-01, table: shop.a, source: {files: /in/*.json}}
"""
    [problem] = problems_of(text, tmp_path)
    assert str(problem).startswith(
        "shop.opal.yaml:2:13: dags.a.schedule: there is no schedule '@houry'; did you mean '@hourly'?"
    )


def test_defaults_hold_unless_the_pipeline_says_otherwise(tmp_path: Path) -> None:
    defaults = "defaults:\n  retry_delay: 5m\n  pool: small\n  spark: {executor_memory: 4g, conf: {a: 1, b: true}}"
    text = GOOD.replace("defaults:", defaults).replace(
        "    table:", "    retries: 7\n    pool: null\n    spark: {conf: {b: 2.5}}\n    table:"
    )
    assert problems_of(text, tmp_path) == []
    dag = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"]
    assert (dag.retries, dag.retry_delay.total_seconds(), dag.pool) == (7, 300, None)
    assert dag.spark is not None
    assert dag.spark.model_dump(exclude_none=True) == {
        "executor_memory": "4g",
        "conf": {"a": "1", "b": "2.5"},
    }


@pytest.mark.parametrize(
    "said, window, zorder",
    [
        ("    maintenance: true\n", "30d", None),
        ("    maintenance: {zorder: [order_id]}\n", "30d", ["order_id"]),
        ("    maintenance: {window: 1d}\n", "1d", None),
        ("", "30d", None),
    ],
)
def test_maintenance_of_the_defaults_and_of_the_pipeline_are_joined(
    said: str, window: str, zorder: list[str] | None, tmp_path: Path
) -> None:
    text = GOOD.replace("defaults:", "defaults:\n  maintenance: {window: 30d}").replace(
        "    table:", f"{said}    table:"
    )
    assert problems_of(text, tmp_path) == []
    maintenance = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"].maintenance
    assert isinstance(maintenance, MaintenanceModel)
    assert (span_text("window", maintenance.window), maintenance.zorder, maintenance.schedule) == (
        window,
        zorder,
        "@daily",
    )


@pytest.mark.parametrize("said", ["false", "null"])
def test_a_pipeline_may_have_no_maintenance_though_the_defaults_say_it(
    said: str, tmp_path: Path
) -> None:
    text = GOOD.replace("defaults:", "defaults:\n  maintenance: true").replace(
        "    table:", f"    maintenance: {said}\n    table:"
    )
    assert problems_of(text, tmp_path) == []
    assert read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"].maintenance is None


def test_a_link_out_of_the_folder_is_refused_and_one_within_it_is_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.yaml", tmp_path / "dags"
    folder.mkdir()
    outside.write_text(GOOD)
    (folder / "out.opal.yaml").symlink_to(outside)
    [problem] = read_yaml(folder / "out.opal.yaml", folder).problems
    assert (
        str(problem)
        == "out.opal.yaml:1:1: this is a link to a file outside of the folder; copy the file into it"
    )
    (folder / "..data").mkdir()
    (folder / "..data" / "in.opal.yaml").write_text(GOOD)
    (folder / "in.opal.yaml").symlink_to("..data/in.opal.yaml")
    assert read_yaml(folder / "in.opal.yaml", folder).problems == []
    assert [path.name for path in found_files(folder)] == ["in.opal.yaml", "out.opal.yaml"]


def test_a_link_to_nowhere_a_pipe_and_a_folder_are_errors_and_block_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.opal.yaml").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "b.opal.yaml")
    found = [
        str(problem)
        for path in found_files(tmp_path)
        for problem in read_yaml(path, tmp_path).problems
    ]
    assert found == [
        "a.opal.yaml:1:1: the file cannot be read (No such file or directory); give Airflow's user the right to",
        "b.opal.yaml:1:1: this is no file; put a YAML file in its place",
    ]


def test_a_name_of_a_file_that_moves_the_cursor_is_escaped(tmp_path: Path) -> None:
    [problem] = problems_of("version: 2", tmp_path, "a\n\x1b[2J.opal.yaml")
    assert str(problem).startswith("a\\n\\x1b[2J.opal.yaml:1:10: version")


PIECES = "\n § §  §:§: §- §[§]§{§}§{{ § }}§{% §&a §*a§<<: §!x §'§\"§|§>§#§@§~§null§true§1e9§-0§\t§\r§\x85§%§? §,§0x10§.nan§..§/§é§\U0001f600"
TOKENS = st.sampled_from(PIECES.split("§"))


@settings(max_examples=400, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), TOKENS), min_size=1, max_size=4
    )
)
def test_a_randomly_changed_file_has_its_mistakes_reported_and_raises_nothing(
    changes: list[tuple[int, int, str]],
) -> None:
    text = GOOD
    for place, gone, new in changes:
        text = text[:place] + new + text[place + gone :]
    with tempfile.TemporaryDirectory() as folder:
        for problem in problems_of(text, Path(folder)):
            assert (
                1
                <= problem.position.line
                <= text.count("\n") + text.count("\r") + text.count("\x85") + 2
            )
            assert problem.what
            assert "\n" not in str(problem)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert problems_of(data, Path(folder))
