"""Connections to databases: options, credentials from the environment, drivers."""

import os
import re

from opal_lake.errors import InvalidInputError, OpalError, StorageError
from opal_lake.source import Jdbc

# The classes are named, because Java's own search does not find a driver in a jar of the job
_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
}
_PACKAGES = {
    "postgresql": "org.postgresql:postgresql:42.7.8",
    "mysql": "com.mysql:mysql-connector-j:<version>",
    "mariadb": "org.mariadb.jdbc:mariadb-java-client:<version>",
    "sqlserver": "com.microsoft.sqlserver:mssql-jdbc:<version>",
    "oracle": "com.oracle.database.jdbc:ojdbc11:<version>",
}
_NO_DRIVER = re.compile(r"ClassNotFoundException: [\w.$]+|No suitable driver|JDBC_DRIVER_NOT_FOUND")
_DRIVER_ERROR = re.compile(r"\b((?:\w+\.)*\w*(?:PSQL|SQL\w*)Exception): ([^\n]*)")
_REFUSED = re.compile(r"requirement failed: ([^\n]*)|(User-defined partition column [^\n]*)")
_PASSING = re.compile(
    r"connect|timed? ?out|timeout|I/O error|terminat|starting up|shutting down|too many clients"
    r"|serializ|deadlock",
    re.IGNORECASE,
)


def connection_options(source: Jdbc) -> dict[str, str]:
    """Return the options of Spark's reader."""
    # Without a fetch size PostgreSQL's driver would hold the whole answer in memory
    defaults = {"fetchsize": "10000", "preferTimestampNTZ": "true"}
    if database(source) in _DRIVERS:
        defaults["driver"] = _DRIVERS[database(source)]
    given = {name.casefold() for name in source.options}
    options = {name: value for name, value in defaults.items() if name.casefold() not in given}
    options |= {**source.options, "url": source.url}
    for option, variable in (("user", source.user_env), ("password", source.password_env)):
        if variable is not None:
            options[option] = _from_environment(option, variable)
    return options


def _from_environment(option: str, variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise InvalidInputError(
            f"the environment variable {variable!r} for the database's {option} is not set; "
            "set it where the Spark driver runs"
        )
    return value


def database(source: Jdbc) -> str:
    """Return the database that the URL names, such as `postgresql`."""
    return source.url.split(":")[1].lower()


def relation(source: Jdbc) -> str:
    """Return the SQL that stands after FROM: the table, or the query as a subquery."""
    return source.table or f"({source.query}) opal_source"


def partition_column(source: Jdbc) -> str | None:
    """Return the column by which the read is split into tasks."""
    options = {name.casefold(): value for name, value in source.options.items()}
    column = options.get("partitioncolumn")
    return column.strip('"`') if column else None


def as_jdbc_error(source: Jdbc, text: str) -> OpalError | None:
    """Return the error of a database; None if the database did not cause the failure.

    `text` has the messages of the failure and of its causes.
    """
    where = f"jdbc:{database(source)}"
    if _NO_DRIVER.search(text):
        package = _PACKAGES.get(database(source), "<group>:<artifact>:<version>")
        return InvalidInputError(
            f"Spark has no driver for {where}: add the driver's jar with spark-submit --packages "
            f"{package} (or --jars), or with spark.jars.packages before the session starts"
        )
    if refused := _REFUSED.search(text):
        reason = refused[1] or refused[2]
        return InvalidInputError(f"{where}: {reason.strip()}; correct the options")
    driver_errors = _DRIVER_ERROR.findall(text)
    if not driver_errors:
        return None
    # The innermost cause is the last one
    _, message = driver_errors[-1]
    message = message.strip()
    if _PASSING.search(message):
        return StorageError(f"{where} did not answer the query: {message}; try again")
    return InvalidInputError(
        f"{where} refused to read {source.table or source.query!r}: {message}; "
        "correct the source or the rights of its user"
    )
