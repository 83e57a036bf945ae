"""boto3 clients: one for each process and set of options, made when first needed.

The time of the store's last response is remembered for each.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from opal_lake.errors import InvalidInputError, NotFoundError, StorageError

S3Options = tuple[tuple[str, str], ...]

_CREDENTIALS = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
_KNOWN = _CREDENTIALS | {"endpoint_url", "region_name", "path_style"}
_DENIED = frozenset(
    {
        "403",
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "AllAccessDisabled",
    }
)
_TRIES = 4
_CONNECTIONS = 64

_Key = tuple[int, S3Options]  # process id and options
_clients: dict[_Key, Any] = {}
_clients_lock = Lock()
# The store's time in microseconds, and this process's `_count_ns` when it was received.
_store_times: dict[_Key, tuple[int, int]] = {}


def check_options(options: Mapping[str, str]) -> S3Options:
    """Return options in a form that can be compared, hashed and pickled.

    Messages never show values: some are secrets.
    """
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise InvalidInputError(f"the S3 options {unknown} are not known: use {sorted(_KNOWN)}")
    if options.get("path_style", "true") not in ("true", "false"):
        raise InvalidInputError(
            "the S3 option path_style is neither 'true' nor 'false': "
            "set it to one of them, or leave it out"
        )
    if ("aws_access_key_id" in options) != ("aws_secret_access_key" in options):
        raise InvalidInputError(
            "one of the S3 options aws_access_key_id and aws_secret_access_key is missing: "
            "give both, or neither"
        )
    endpoint = options.get("endpoint_url", "https://default")
    if "@" in endpoint or urlsplit(endpoint).scheme not in ("http", "https"):
        raise InvalidInputError(
            "the S3 option endpoint_url must be http(s)://host:port, and hold no user or "
            "password; its value is not shown here, as it may hold a password"
        )
    return tuple(sorted(options.items()))


def s3_client(options: S3Options) -> Any:
    """Return the client of this process.

    Clients are thread-safe, but a forked child must not share their sockets.
    """
    key = os.getpid(), options
    with _clients_lock:
        if key not in _clients:
            _clients[key] = _new_client(dict(options))
            _clients[key].meta.events.register("after-call.s3", _listener(key))
        return _clients[key]


def store_now_us(options: S3Options) -> int | None:
    """Return the store's time, by the `Date` of its responses and the time since then.

    Return None if no response had a date.
    """
    return _store_time_us((os.getpid(), options))


def _store_time_us(key: _Key) -> int | None:
    response_time = _store_times.get(key)
    if response_time is None:
        return None
    date_us, received_ns = response_time
    return date_us + (_count_ns() - received_ns) // 1000


def _listener(key: _Key) -> Callable[..., None]:
    def listen(http_response: Any, **_: Any) -> None:
        # A gateway may leave the date out, or garble it.
        with suppress(TypeError, ValueError, AttributeError):
            date = parsedate_to_datetime(http_response.headers["Date"])
            date_us = int(date.timestamp() * 1_000_000)
            known_us = _store_time_us(key)
            # A date is cut to its second. A time within it, by earlier responses, is more exact,
            # and the store's time does not go back.
            if known_us is None or not date_us <= known_us < date_us + 1_000_000:
                _store_times[key] = date_us, _count_ns()

    return listen


def _count_ns() -> int:
    """Return a monotonic time, which goes on while the machine sleeps if possible."""
    # Linux's monotonic clock stands still then.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


@contextmanager
def s3_errors(bucket: str, key: str) -> Iterator[None]:
    """Raise boto3's errors as those of this project."""
    try:
        yield
    except ClientError as error:
        raise translated(error, bucket, key) from error
    except NoCredentialsError as error:
        # A machine's own credentials may come late: the error is one that is tried again.
        raise StorageError(
            f"no request was sent to S3, since credentials for bucket '{bucket}' are missing: set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give them as options, then try again"
        ) from error
    except (BotoCoreError, OSError) as error:
        raise StorageError(
            f"S3 did not answer for '{key}' in bucket '{bucket}': {error}: "
            "check endpoint and credentials, then try again"
        ) from error


def error_code(error: ClientError) -> str:
    """Return S3's name of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def error_status(error: ClientError) -> int:
    """Return the HTTP status of an error."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def was_retried(error: ClientError) -> bool:
    """Return whether an earlier try of the client failed: it may have had an effect."""
    return int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) > 0


def translated(error: ClientError, bucket: str, key: str) -> NotFoundError | StorageError:
    """Return an error of S3 as one that says what to do."""
    code = error_code(error)
    # The response to a HEAD request has no body with a code.
    if code in ("NoSuchKey", "404"):
        return NotFoundError(
            f"'{key}' is not in bucket '{bucket}': it was never written, or deleted since"
        )
    if code == "NoSuchBucket":
        return StorageError(
            f"bucket '{bucket}' does not exist: create it, or correct the URI or the endpoint"
        )
    if code in _DENIED or error_status(error) == 403:
        return StorageError(
            f"S3 denied access to '{key}' in bucket '{bucket}' ({code}): check the credentials; "
            "they need to read, write, delete and list, "
            "and without the right to list, S3 gives the same answer for missing objects"
        )
    message = error.response.get("Error", {}).get("Message", "")
    return StorageError(
        f"S3 answered {error_status(error)} {code} for '{key}' in bucket '{bucket}': "
        f"{message}: try again"
    )


def _new_client(options: dict[str, str]) -> Any:
    config = Config(
        retries={"mode": "standard", "max_attempts": _TRIES},
        max_pool_connections=_CONNECTIONS,
        connect_timeout=10,
        read_timeout=60,
        tcp_keepalive=True,
        s3=_addressing(options.get("path_style")),
    )
    # Not boto3's default session, which is not thread-safe.
    session = boto3.session.Session(region_name=options.get("region_name"))
    endpoint = options.get("endpoint_url")
    region = session.region_name
    if endpoint and not region:
        region = "us-east-1"  # other services have no regions, but signatures need one
    credentials = {name: options[name] for name in _CREDENTIALS & set(options)}
    return session.client(
        "s3", config=config, endpoint_url=endpoint, region_name=region, **credentials
    )


def _addressing(path_style: str | None) -> dict[str, str]:
    # boto3's own choice is by path at another endpoint, otherwise by host.
    if path_style is None:
        return {}
    return {"addressing_style": "path" if path_style == "true" else "virtual"}
