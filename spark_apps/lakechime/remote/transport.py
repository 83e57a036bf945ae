"""Requests to a service and their answers: time-outs, retries and errors."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from lakechime.errors import (
    AccessError,
    InvalidEventError,
    LakeChimeError,
    NotFoundError,
    UnavailableError,
)
from lakechime.remote.problems import UNAUTHENTICATED, UNAVAILABLE, error_of
from opal_lake.clock import doubled_pause_s

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.2
TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_PASSING = (502, UNAVAILABLE.status, 504)  # from the service, or from a proxy before it
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
TOKEN_VARIABLE = "LAKECHIME_TOKEN"


@dataclass(slots=True, kw_only=True)
class Transport:
    """A connection to one service.

    Several threads may use it; a forked process gets its own connections.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    sleep: Callable[[float], None] = time.sleep
    _client: httpx.Client | None = field(default=None, repr=False)
    _process: int = 0

    def __post_init__(self) -> None:
        self.url = checked_url(self.url)
        if self.token is not None and not _is_header_value(self.token):
            raise AccessError(
                "the token is empty, or has a character that no token has; "
                "copy it as `lakechime token create` printed it"
            )

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, repeatable=True, params=_given(params))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a query, or a change that may be sent twice."""
        return self._ask("POST", path, repeatable=True, content=encoded(body))

    def once(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **params: Any
    ) -> Any:
        """Send a change that must not be done twice; repeat it only if it was never sent."""
        return self._ask(
            method, path, repeatable=False, content=_content(body), params=_given(params)
        )

    def in_one_step(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **params: Any
    ) -> Any:
        """Send a change that names its step; repeat it if the answer was lost.

        If the last attempt gets no answer either, it is unknown whether the change was made.
        """
        return self._ask(
            method,
            path,
            repeatable=True,
            sure=False,
            content=_content(body),
            params=_given(params),
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(
        self, method: str, path: str, *, repeatable: bool, sure: bool | None = None, **request: Any
    ) -> Any:
        """Send a request, repeat it where that is safe, and return the answer's value.

        `sure` is True if the caller may simply try again after a failure. Otherwise the error says
        that the change may have been made. The default is `repeatable`.
        """
        if sure is None:
            sure = repeatable
        attempt = 0
        while True:
            attempt += 1
            answer: httpx.Response | None = None
            failure: httpx.HTTPError | None = None
            try:
                answer = self._connected().request(method, f"{self.url}{path}", **request)
            except httpx.HTTPError as error:
                failure = error
            if answer is not None and answer.is_success:
                return self._value(answer)
            if attempt == ATTEMPTS or not _may_repeat(answer, failure, repeatable=repeatable):
                was_never_sent = isinstance(failure, _NEVER_SENT)
                raise self._error(answer, failure, sure=sure or was_never_sent) from failure
            self.sleep(doubled_pause_s(attempt, FIRST_PAUSE_SECONDS))

    def _connected(self) -> httpx.Client:
        if self._client is None or self._process != os.getpid():
            headers = {"Accept": "application/json", "Content-Type": "application/json"}
            if self.token is not None:
                headers["Authorization"] = f"Bearer {self.token}"
            self._client = httpx.Client(headers=headers, timeout=TIMEOUT)
            self._process = os.getpid()
        return self._client

    def _value(self, answer: httpx.Response) -> Any:
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise self._foreign_error(answer) from error

    def _error(
        self, answer: httpx.Response | None, failure: Exception | None, *, sure: bool
    ) -> LakeChimeError:
        if answer is None:
            reason = str(failure) or type(failure).__name__
            next_step = "try again"
            if not sure:
                next_step = "read the state before you try again: the change may have been made"
            return UnavailableError(
                f"the LakeChime service at {self.url} does not answer ({reason}); "
                f"check that it runs, and {next_step}"
            )
        try:
            error = error_of(answer.status_code, answer.json())
        except ValueError:
            error = None
        if error is None:
            return self._foreign_error(answer)
        if answer.status_code == UNAUTHENTICATED.status:
            return AccessError(f"{self.url}: {error}; set {TOKEN_VARIABLE}, or pass token=")
        return error

    def _foreign_error(self, answer: httpx.Response) -> LakeChimeError:
        """Return the error for an answer of a proxy, or of another program."""
        fact = f"{self.url} answers {answer.status_code}, but not as a LakeChime service"
        if answer.status_code in (*_PASSING, httpx.codes.INTERNAL_SERVER_ERROR):
            return UnavailableError(
                f"{fact}; a proxy in between may not reach the service: try again"
            )
        return NotFoundError(
            f"{fact}; write the address of a service, such as http://host:8765, "
            "or http://host:8080/lakechime in Airflow's api-server"
        )


def _is_header_value(token: str) -> bool:
    """Return whether a token can be sent in a header."""
    return token.isascii() and token.isprintable() and bool(token.strip())


def checked_url(url: str) -> str:
    """Return a service's URL without a final slash, or raise InvalidEventError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidEventError(
            f"{url!r} is not the URL of a service; write http://host:8765 or https://host/lakechime"
        )
    if "@" in parts.netloc:
        raise InvalidEventError(
            f"the URL of {parts.hostname} has a user or a password; "
            f"leave them out, and set {TOKEN_VARIABLE} or pass token="
        )
    if parts.query or parts.fragment:
        raise InvalidEventError(
            f"the URL of {parts.hostname} has a part after ? or #; leave it out"
        )
    return url.rstrip("/")


def _content(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else encoded(body)


def encoded(body: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(
            body, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
        )
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEventError(
            f"the arguments cannot be written as JSON ({error}); use texts, numbers, booleans, "
            "lists and mappings"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not one of JSON's types")


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _may_repeat(
    answer: httpx.Response | None, failure: Exception | None, *, repeatable: bool
) -> bool:
    """Return whether a request may be sent again after this answer or failure."""
    if answer is not None:
        return repeatable and answer.status_code in _PASSING and not _is_lasting(answer)
    if isinstance(failure, _NEVER_SENT):
        return True
    return repeatable and isinstance(failure, httpx.TransportError)


def _is_lasting(answer: httpx.Response) -> bool:
    """Return whether the service itself reports an error that a retry does not solve."""
    try:
        error = error_of(answer.status_code, answer.json())
    except ValueError:
        return False
    return error is not None and not isinstance(error, UnavailableError)
