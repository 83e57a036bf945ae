"""How an S3 store is reached, under the store's own names and under those of Spark's S3A: one map for connection, command and session."""

from collections.abc import Callable, Mapping

SETTINGS = {
    "endpoint_url": "spark.hadoop.fs.s3a.endpoint",
    "region_name": "spark.hadoop.fs.s3a.endpoint.region",
    "aws_access_key_id": "spark.hadoop.fs.s3a.access.key",
    "aws_secret_access_key": "spark.hadoop.fs.s3a.secret.key",
    "aws_session_token": "spark.hadoop.fs.s3a.session.token",
    "path_style": "spark.hadoop.fs.s3a.path.style.access",
}
_TLS = "spark.hadoop.fs.s3a.connection.ssl.enabled"


def is_s3(uri: str) -> bool:
    return uri.startswith(("s3://", "s3a://"))


def spark_settings(options: Mapping[str, str]) -> dict[str, str]:
    """For Spark. Secrets are among them: they never go by argv, templates or logs. Options of other stores are left out."""
    settings = {SETTINGS[name]: value for name, value in options.items() if name in SETTINGS}
    return (
        {**settings, _TLS: "false"}
        if options.get("endpoint_url", "").startswith("http://")
        else settings
    )


def store_options(setting: Callable[[str], str | None]) -> dict[str, str]:
    """For the store, from Spark's settings, as far as these say something."""
    options = {
        name: value for name, spark_name in SETTINGS.items() if (value := setting(spark_name))
    }
    endpoint = options.get("endpoint_url")
    if endpoint and "://" not in endpoint:
        options["endpoint_url"] = f"{'http' if setting(_TLS) == 'false' else 'https'}://{endpoint}"
    return options
