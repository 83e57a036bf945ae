"""The store's options as Spark has them, there and back."""

import pytest

from opal_lake.s3a import SETTINGS, is_s3, spark_settings, store_options

OPTIONS = {
    "endpoint_url": "https://store:9000",
    "region_name": "eu-central-1",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "path_style": "true",
}


def test_every_option_goes_to_spark_and_back() -> None:
    assert OPTIONS.keys() == SETTINGS.keys()
    settings = spark_settings(OPTIONS)
    assert settings["spark.hadoop.fs.s3a.endpoint"] == "https://store:9000"
    assert store_options(settings.get) == OPTIONS


def test_options_that_are_not_given_are_not_set_and_those_of_other_stores_are_left_out() -> None:
    assert spark_settings({}) == {}
    assert spark_settings({"hard_links": "false", "path_style": "true"}) == {
        "spark.hadoop.fs.s3a.path.style.access": "true"
    }
    assert store_options({"spark.hadoop.fs.s3a.endpoint": ""}.get) == {}


@pytest.mark.parametrize(
    "given, tls, endpoint",
    [
        ("s:9000", None, "https://s:9000"),
        ("s:9000", "false", "http://s:9000"),
        ("http://s", None, "http://s"),
    ],
)
def test_an_endpoint_without_a_scheme_has_that_of_spark(
    given: str, tls: str | None, endpoint: str
) -> None:
    settings = {
        "spark.hadoop.fs.s3a.endpoint": given,
        "spark.hadoop.fs.s3a.connection.ssl.enabled": tls,
    }
    assert store_options(settings.get) == {"endpoint_url": endpoint}


def test_endpoint_without_tls_turns_off_tls_in_spark() -> None:
    assert (
        spark_settings({"endpoint_url": "http://s:9000"})[
            "spark.hadoop.fs.s3a.connection.ssl.enabled"
        ]
        == "false"
    )


def test_both_of_its_schemes_are_s3() -> None:
    assert [is_s3(uri) for uri in ("s3://b/t", "s3a://b/t", "/lake/t", "file:///t", "s3x://b")] == [
        True,
        True,
        False,
        False,
        False,
    ]
