"""The options of an S3 store, and the settings of Spark's S3A that they stand for.

Connections, commands and Spark sessions use this one map.
"""

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
    """Return Spark's settings for the options of a store; other options are left out.

    The settings may hold secrets. Keep them out of process arguments, templates and logs.
    """
    settings: dict[str, str] = {}
    for name, value in options.items():
        if name in SETTINGS:
            settings[SETTINGS[name]] = value
    if options.get("endpoint_url", "").startswith("http://"):
        settings[_TLS] = "false"
    return settings


def store_options(setting: Callable[[str], str | None]) -> dict[str, str]:
    """Return the options of a store that are set in Spark.

    `setting` returns the value of a Spark setting, or None.
    """
    options: dict[str, str] = {}
    for name, spark_name in SETTINGS.items():
        value = setting(spark_name)
        if value:
            options[name] = value
    endpoint = options.get("endpoint_url")
    if endpoint and "://" not in endpoint:
        scheme = "http" if setting(_TLS) == "false" else "https"
        options["endpoint_url"] = f"{scheme}://{endpoint}"
    return options
