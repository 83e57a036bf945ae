"""boto3 clients: one for each process and set of options, made when first needed. Each remembers the store's last time."""

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

_clients: dict[tuple[int, S3Options], Any] = {}
_clients_lock = Lock()
_store_times: dict[
    tuple[int, S3Options], tuple[int, int]
] = {}  # the store's time, and this process's monotonic clock when it was received


def check_options(options: Mapping[str, str]) -> S3Options:
    """Options in a form that can be compared, hashed and pickled. Values are never shown: some are secrets."""
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise InvalidInputError(f"the S3 options {unknown} are not known: use {sorted(_KNOWN)}")
    if options.get("path_style", "true") not in ("true", "false"):
        raise InvalidInputError(
            "the S3 option path_style is neither 'true' nor 'false': set it to one of them, or leave it out"
        )
    if ("aws_access_key_id" in options) != ("aws_secret_access_key" in options):
        raise InvalidInputError(
            "of the S3 options aws_access_key_id and aws_secret_access_key one is missing: give both, or neither"
        )
    endpoint = options.get("endpoint_url", "https://default")
    if "@" in endpoint or urlsplit(endpoint).scheme not in ("http", "https"):
        raise InvalidInputError(
            "the S3 option endpoint_url is not of the form http(s)://host:port, without user and password: correct it"
        )
    return tuple(sorted(options.items()))


def s3_client(options: S3Options) -> Any:
    """The client of this process. Clients are thread-safe, but their sockets must not be shared with forked children."""
    key = os.getpid(), options
    with _clients_lock:
        if key not in _clients:
            _clients[key] = _new_client(dict(options))
            _clients[key].meta.events.register("after-call.s3", _listener(key))
        return _clients[key]


def told_us(options: S3Options) -> int | None:
    """By the `Date` of answers, whatever they answered, and the time since; None where no answer had one."""
    return _since(_store_times.get((os.getpid(), options)))


def _since(answer: tuple[int, int] | None) -> int | None:
    return None if answer is None else answer[0] + (_count_ns() - answer[1]) // 1000


def _listener(key: tuple[int, S3Options]) -> Callable[..., None]:
    def listen(http_response: Any, **_: Any) -> None:
        with suppress(
            TypeError, ValueError, AttributeError
        ):  # what a gateway leaves out or garbles tells nothing
            date_us = int(
                parsedate_to_datetime(http_response.headers["Date"]).timestamp() * 1_000_000
            )
            known_us = _since(_store_times.get(key))
            # A date is cut to its second: what earlier answers tell of a time within it is nearer, and never goes back
            if known_us is None or not date_us <= known_us < date_us + 1_000_000:
                _store_times[key] = date_us, _count_ns()

    return listen


def _count_ns() -> int:
    """Goes on while the machine sleeps, where the system has such a count: Linux's monotonic one stands still then."""
    return (
        time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic_ns()
    )


@contextmanager
def s3_errors(bucket: str, key: str) -> Iterator[None]:
    """boto3's errors as ours."""
    try:
        yield
    except ClientError as error:
        raise translated(error, bucket, key) from error
    except (
        NoCredentialsError
    ) as error:  # a machine's own credentials may be late, so that trying again can help
        how = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give them as options, then try again"
        raise StorageError(
            f"S3 was not asked: there are no credentials for bucket '{bucket}'; {how}"
        ) from error
    except (BotoCoreError, OSError) as error:
        raise StorageError(
            f"S3 did not answer for '{key}' in bucket '{bucket}': {error}: check endpoint and credentials, then try again"
        ) from error


def error_code(error: ClientError) -> str:
    """S3's name of the error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def error_status(error: ClientError) -> int:
    """The HTTP status of the error."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def was_retried(error: ClientError) -> bool:
    """Whether an earlier try of the client has failed otherwise: that one may have had an effect."""
    return int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) > 0


def translated(error: ClientError, bucket: str, key: str) -> NotFoundError | StorageError:
    """An answer of S3 as the error that tells the caller what to do."""
    code = error_code(error)
    if code in ("NoSuchKey", "404"):  # a HEAD's answer has no body to name it
        return NotFoundError(
            f"'{key}' is not in bucket '{bucket}': it was never written, or deleted since"
        )
    if code == "NoSuchBucket":
        return StorageError(
            f"bucket '{bucket}' does not exist: create it, or correct the URI or the endpoint"
        )
    if code in _DENIED or error_status(error) == 403:
        return StorageError(
            f"S3 denied access to '{key}' in bucket '{bucket}' ({code}): check the credentials; they need to read, write, delete "
            "and list, and without the right to list, S3 says the same of absent objects"
        )
    message = error.response.get("Error", {}).get("Message", "")
    return StorageError(
        f"S3 answered {error_status(error)} {code} for '{key}' in bucket '{bucket}': {message}: try again"
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
    session = boto3.session.Session(
        region_name=options.get("region_name")
    )  # boto3's default session is not thread-safe
    endpoint = options.get("endpoint_url")
    region = session.region_name or (
        "us-east-1" if endpoint else None
    )  # one's own store has no regions, but signing needs one
    credentials = {name: options[name] for name in _CREDENTIALS & set(options)}
    return session.client(
        "s3", config=config, endpoint_url=endpoint, region_name=region, **credentials
    )


def _addressing(path_style: str | None) -> dict[str, str]:
    if path_style is None:
        return {}  # boto3: by path at an endpoint of one's own, else by host
    return {"addressing_style": "path" if path_style == "true" else "virtual"}
