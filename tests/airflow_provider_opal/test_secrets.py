"""Secrets, which no command line, log, template, result or error shows."""

import json
import logging
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import _secrets_masker
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.serde import serialize

from airflow_provider_opal import IngestOperator, MetaGenOperator
from airflow_provider_opal.operators.spark import OpalSparkOperator
from airflow_provider_opal.secrets import redacted, secret_arguments, secret_values, without_secrets
from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import RETRY
from opal_lake.source import Jdbc
from opal_lake.storage.open import open_storage
from tests.airflow_provider_opal.stand_ins import Commands, commands, context
from tests.opal_lake.shop import create_with_pending

__all__ = ["commands"]

LOGIN, PASSWORD, TOKEN = "AKIAEXAMPLE0LOGIN", "s3cr3t/key+of\\the=store", "t0k3n-0f-th3-s3ss10n"
IN_CONNECTION = {"login": LOGIN, "password": PASSWORD, "session_token": TOKEN}
IN_CONF = {
    "spark.hadoop.fs.s3a.access.key": "AKIAEXAMPLE0OF0CONF",
    "spark.hadoop.fs.s3a.secret.key": "s3cr3t-of-the-conf",
    "spark.hadoop.fs.s3a.session.token": "t0k3n-of-the-conf",
    "spark.hadoop.fs.s3a.bucket.other.secret.key": "s3cr3t-of-another-bucket",
    "spark.hadoop.fs.s3a.proxy.password": "pr0xy-of-the-conf",
    "spark.hadoop.fs.s3a.endpoint": "http://someone:p4ss-of-the-url@store:9000",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "4zur3-of-the-conf==",
    "spark.driver.extraJavaOptions": "-Djavax.net.ssl.keyStorePassword=k3yst0r3-of-java -Dx=1",
}
IN_ENVIRONMENT = {
    "SHOP_PASSWORD": "p4ss-of-the-shop",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-of-the-environment",
}
VALUES = [*IN_CONNECTION.values(), *IN_CONF.values(), *IN_ENVIRONMENT.values()]


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a lake on an S3 server, with a table of its own for each test."""
    root = f"s3a://lake/secrets/{tmp_path.name}"
    create_with_pending(open_storage(f"{root}/t", s3_options))
    set_lake(monkeypatch, root, s3_options["endpoint_url"])
    return root


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def set_lake(monkeypatch: pytest.MonkeyPatch, root: str, endpoint: str, login: str = LOGIN) -> None:
    extra = {
        "session_token": TOKEN,
        "endpoint_url": endpoint,
        "region_name": "us-east-1",
        "path_style": "true",
    }
    connection = {
        "conn_type": "opal",
        "host": root,
        "login": login,
        "password": PASSWORD,
        "extra": extra,
    }
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))


def set_spark(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    connection = {
        "local": {"host": "local[2]"},
        "yarn": {"host": "yarn", "extra": {"deploy-mode": "cluster"}},
    }[mode]
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection})
    )


def run(task: OpalSparkOperator) -> tuple[Any, list[str]]:
    """Return the outcome, and every text in which Airflow shows the task."""
    before = [repr({name: getattr(task, name) for name in task.template_fields})]
    result: object = None
    try:
        result = task.execute(context(task))
    except (AirflowException, InvalidInputError) as error:
        result = error
        before += [
            repr(error),
            *(repr(cause) for cause in (error.__cause__, error.__context__) if cause is not None),
        ]
    else:
        before.append(json.dumps(serialize(result), default=str))
    return result, [*before, repr({name: getattr(task, name) for name in task.template_fields})]


def logged(logs: pytest.LogCaptureFixture) -> str:
    """Return all logs; those of the S3 client as Airflow masks them."""
    lines = [
        (record.name, record.getMessage() + (record.exc_text or "")) for record in logs.records
    ]
    return "\n".join(
        _secrets_masker().redact(line) if name.startswith(("botocore", "urllib3")) else line
        for name, line in lines
    )


@pytest.mark.s3
@pytest.mark.parametrize("mode", ["local", "yarn"])
@pytest.mark.parametrize("echo", [False, True], ids=["silent", "chatty"])
def test_no_secret_is_on_the_command_line_or_in_what_is_shown(
    mode: str,
    echo: bool,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    logs: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Run apps that print all settings and variables."""
    set_spark(monkeypatch, mode)
    commands.spark_submit(
        "opal: the store was in the way", status=RETRY, echo=list(IN_ENVIRONMENT) if echo else []
    )
    task = MetaGenOperator(
        task_id="m",
        table="t",
        conf={"spark.x": "1", **IN_CONF},
        env_vars={"SHOP": "1", **IN_ENVIRONMENT},
    )
    error, shown = run(task)
    assert isinstance(error, AirflowException)
    assert not isinstance(error, AirflowFailException)
    note = commands.notes()[0]
    seen = {
        "command line": " ".join(note["argv"]),
        "logs": logged(logs),
        "output": "".join(capfd.readouterr()),  # the task's own log
        "templates and error": " ".join(shown),
    }
    assert not [(where, value) for where, text in seen.items() for value in VALUES if value in text]
    assert "spark.x=1" in note["argv"]


@pytest.mark.s3
@pytest.mark.parametrize("mode", ["local", "yarn"])
def test_every_secret_reaches_spark_by_a_file_of_the_user_alone_or_by_the_environment(
    mode: str, commands: Commands, monkeypatch: pytest.MonkeyPatch, lake: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # nobody else's files are among those that are looked for
    set_spark(monkeypatch, mode)
    commands.spark_submit(status=RETRY)
    run(MetaGenOperator(task_id="m", table="t", conf={"spark.x": "1"}, env_vars=IN_ENVIRONMENT))
    run(MetaGenOperator(task_id="m", table="t", conf=IN_CONF))
    first, second = commands.notes()
    assert stat.S_IMODE(first["mode"]) == 0o600
    assert "--load-spark-defaults" in first["argv"]
    properties = first["properties"].splitlines()
    assert f"spark.hadoop.fs.s3a.access.key={LOGIN}" in properties
    assert "spark.hadoop.fs.s3a.secret.key=s3cr3t/key+of\\\\the=store" in properties
    assert f"spark.hadoop.fs.s3a.session.token={TOKEN}" in properties
    assert {name: first["environment"][name] for name in IN_ENVIRONMENT} == IN_ENVIRONMENT
    carried = {f"spark.yarn.appMasterEnv.{name}={value}" for name, value in IN_ENVIRONMENT.items()}
    assert carried & set(properties) == (carried if mode == "yarn" else set())
    assert {f"{name}={value}" for name, value in IN_CONF.items()} <= set(
        second["properties"].splitlines()
    )  # before the connection's
    assert not list(tmp_path.glob("opal-submit-*/spark.properties"))


@pytest.mark.s3
@pytest.mark.parametrize("option", [*IN_CONNECTION, "endpoint_url"])
def test_an_error_of_the_store_shows_no_option_of_the_connection(
    option: str,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    logs: pytest.LogCaptureFixture,
    lake: str,
) -> None:
    """Refuse an endpoint with user and password before anything is submitted.

    An endpoint that does not answer is named without keys.
    """
    set_spark(monkeypatch, "local")
    endpoint = (
        "http://someone:p4ss-of-the-url@127.0.0.1:9"
        if option == "endpoint_url"
        else "http://127.0.0.1:9"
    )
    set_lake(monkeypatch, lake, endpoint)
    monkeypatch.setattr("opal_lake.storage.s3_client._TRIES", 1)
    commands.spark_submit()
    task = MetaGenOperator(task_id="m", table="t")
    try:
        task.execute(context(task))
    except Exception as error:  # noqa: BLE001  # what it is, is not the question here
        shown = repr(error) + repr(error.__cause__)
    else:
        pytest.fail("the store cannot have answered")
    assert not commands.notes()
    value = {**IN_CONNECTION, "endpoint_url": "p4ss-of-the-url"}[option]
    assert value not in shown + logged(logs)


@pytest.mark.s3
@pytest.mark.parametrize("table", ["t", "/somewhere/else"])
def test_a_table_that_takes_no_such_options_names_them_without_values(
    table: str, commands: Commands, monkeypatch: pytest.MonkeyPatch, logs: pytest.LogCaptureFixture
) -> None:
    set_spark(monkeypatch, "local")
    commands.spark_submit(status=RETRY)
    _, shown = run(MetaGenOperator(task_id="m", table=table))
    assert not [
        value for value in IN_CONNECTION.values() if value in " ".join(shown) + logged(logs)
    ]


@pytest.mark.s3
def test_a_password_of_a_database_is_named_and_never_carried(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, logs: pytest.LogCaptureFixture
) -> None:
    set_spark(monkeypatch, "yarn")
    commands.spark_submit(status=RETRY)
    source = Jdbc(
        url="jdbc:postgresql://db/shop",
        table="orders",
        user_env="SHOP_USER",
        password_env="SHOP_PASSWORD",
    )
    task = IngestOperator(
        task_id="i", table="t", source=source, env_vars={"SHOP_USER": "shop", **IN_ENVIRONMENT}
    )
    _, shown = run(task)
    argv = " ".join(commands.notes()[0]["argv"])
    assert '"password_env": "SHOP_PASSWORD"' in argv.replace('":"', '": "')
    assert "spark.yarn.appMasterEnv.SHOP_USER=shop" in argv
    assert not [
        value
        for value in IN_ENVIRONMENT.values()
        if value in " ".join([argv, logged(logs), *shown])
    ]


@pytest.mark.parametrize(
    "source",
    [
        {
            "jdbc": {
                "url": "jdbc:postgresql://db/shop",
                "table": "orders",
                "options": {"password": "p4ss"},
            }
        },
        {"jdbc": {"url": "jdbc:postgresql://me:p4ss@db/shop", "table": "orders"}},
        {"jdbc": {"url": "jdbc:postgresql://db/shop?user=me&password=p4ss", "table": "orders"}},
        {"files": {"paths": ["https://me:p4ss@host/a.csv"]}},
        {
            "files": {
                "paths": ["s3a://in/a.csv"],
                "options": {"fs.s3a.secret.key": "{{ conn.p4ss.password }}"},
            }
        },
    ],
)
def test_a_job_that_holds_a_secret_is_refused_when_the_dag_is_read(source: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="holds a secret, which Airflow would show") as caught:
        IngestOperator(task_id="i", table="t", source=source)
    assert "p4ss" not in str(caught.value)


def test_a_name_that_only_sounds_like_a_secret_is_not_refused() -> None:
    assert not secret_arguments(
        {
            "source": {
                "jdbc": {
                    "url": "jdbc:postgresql://db/shop",
                    "password_env": "X",
                    "query": "select id, token = 'a' from t",
                }
            },
            "create": {"keys": ["token", "secret"], "delta": "password_changed_at"},
        }
    )


@pytest.mark.s3
def test_secrets_from_templates_are_rendered_and_not_shown(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_spark(monkeypatch, "local")
    monkeypatch.setenv(
        "AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "generic", "password": "p4ss-of-a-template"})
    )
    commands.spark_submit(status=RETRY)
    task = MetaGenOperator(
        task_id="m", table="t", conf={"spark.shop.password": "{{ 'p4ss-of-' ~ 'a-template' }}"}
    )
    _, shown = run(task)
    assert (
        "spark.shop.password=p4ss-of-a-template" in commands.notes()[0]["properties"].splitlines()
    )
    assert "p4ss-of" not in " ".join([*shown, *commands.notes()[0]["argv"]])


def test_settings_without_secrets_stay_where_they_are() -> None:
    plain = {
        "spark.executor.memory": "4g",
        "spark.hadoop.fs.s3a.endpoint": "http://store:9000",
        "spark.driver.extraJavaOptions": "-Dx=1",
    }
    assert without_secrets(plain) == (plain, {})
    assert without_secrets(IN_CONF) == ({}, IN_CONF)


def test_a_text_is_redacted_line_by_line_and_words_stay() -> None:
    settings = {
        "a.secret": "one-line\nand-more",
        "b.token.enabled": "true",
        "c.password": "false",
        "d.token": "abc",
    }
    secrets = secret_values(settings.items())
    assert redacted("one-line and-more, true, false, abc", secrets) == "*** ***, true, false, abc"
