"""The worker's environment, as a submitted job gets it."""

import pytest

from airflow_provider_opal.hooks.submit import OpalSubmitHook


def test_a_job_leaves_registering_to_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave registration to the task, which knows the table's name in the lake."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    for url, given, seen in (
        (None, {}, None),
        ("sqlite:////e.db", {}, ""),
        ("sqlite:////e.db", {"LAKECHIME_URL": "mine"}, "mine"),
    ):
        monkeypatch.setenv("LAKECHIME_URL", url) if url else monkeypatch.delenv(
            "LAKECHIME_URL", raising=False
        )
        hook = OpalSubmitHook(env_vars=given)
        hook._build_spark_submit_command("job.py")
        assert hook._env.get("LAKECHIME_URL") == seen
