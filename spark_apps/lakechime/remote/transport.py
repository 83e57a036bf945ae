"""One question to the service and its answer: time-outs, what is asked again, and errors as ours."""

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
_PASSING = (502, UNAVAILABLE.status, 504)  # of the service, or of a proxy before it
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
TOKEN_VARIABLE = "LAKECHIME_TOKEN"


@dataclass(slots=True, kw_only=True)
class Transport:
    """Speaks to one service. Several threads may use it; a forked process gets connections of its own."""

    url: str
    token: str | None = field(default=None, repr=False)
    sleep: Callable[[float], None] = time.sleep
    _client: httpx.Client | None = field(default=None, repr=False)
    _process: int = 0

    def __post_init__(self) -> None:
        self.url = checked_url(self.url)
        if self.token is not None and not (
            self.token.isascii() and self.token.isprintable() and self.token.strip()
        ):
            raise AccessError(
                "the token has characters that no token has, or none; copy it as `lakechime token create` printed it"
            )

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, repeatable=True, params=_given(params))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Of questions, and of what may be sent twice."""
        return self._ask("POST", path, repeatable=True, content=encoded(body))

    def once(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **params: Any
    ) -> Any:
        """What must not be done twice: asked again only where it was never sent."""
        content = None if body is None else encoded(body)
        return self._ask(method, path, repeatable=False, content=content, params=_given(params))

    def in_one_step(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **params: Any
    ) -> Any:
        """What names its step, so that it is done once: asked again where the answer was lost.

        Where no answer comes at last, it may have been done all the same.
        """
        content = None if body is None else encoded(body)
        return self._ask(
            method, path, repeatable=True, sure=False, content=content, params=_given(params)
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(
        self, method: str, path: str, *, repeatable: bool, sure: bool | None = None, **request: Any
    ) -> Any:
        """`sure`: whether the caller may ask again, though nobody knows what was done; by default where it is repeatable."""
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
                raise self._error(
                    answer, failure, sure=sure or isinstance(failure, _NEVER_SENT)
                ) from failure
            self.sleep(doubled_pause_s(attempt, FIRST_PAUSE_SECONDS))

    def _connected(self) -> httpx.Client:
        if self._client is None or self._process != os.getpid():
            headers = {"Accept": "application/json", "Content-Type": "application/json"}
            if self.token is not None:
                headers["Authorization"] = f"Bearer {self.token}"
            self._client, self._process = (
                httpx.Client(headers=headers, timeout=TIMEOUT),
                os.getpid(),
            )
        return self._client

    def _value(self, answer: httpx.Response) -> Any:
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise self._stranger(answer) from error

    def _error(
        self, answer: httpx.Response | None, failure: Exception | None, *, sure: bool
    ) -> LakeChimeError:
        if answer is None:
            said = str(failure) or type(failure).__name__
            doubt = (
                "try again"
                if sure
                else "it may have been done: read the state before you try again"
            )
            return UnavailableError(
                f"the LakeChime service at {self.url} does not answer ({said}); see that it runs, and {doubt}"
            )
        try:
            error = error_of(answer.status_code, answer.json())
        except ValueError:
            error = None
        if error is None:
            return self._stranger(answer)
        if answer.status_code == UNAUTHENTICATED.status:
            return AccessError(f"{self.url}: {error}; give it by {TOKEN_VARIABLE}, or as token=")
        return error

    def _stranger(self, answer: httpx.Response) -> LakeChimeError:
        """Something else than a LakeChime service has answered: a proxy, or another program at this address."""
        said = f"{self.url} answers {answer.status_code} as no LakeChime service does"
        if (
            answer.status_code in _PASSING
            or answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
        ):
            return UnavailableError(f"{said}; a proxy before it may not reach it: try again")
        return NotFoundError(
            f"{said}; give its address, as http://host:8475, or http://host:8080/lakechime in Airflow's api-server"
        )


def checked_url(url: str) -> str:
    """Without a slash at the end."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidEventError(
            f"{url!r} is no URL of a service; write http://host:8475 or https://host/lakechime"
        )
    if "@" in parts.netloc:
        raise InvalidEventError(
            f"the URL of {parts.hostname} holds a user or a password; leave them out, and give a token"
        )
    if parts.query or parts.fragment:
        raise InvalidEventError(
            f"the URL of {parts.hostname} has a part after ? or #; leave it out"
        )
    return url.rstrip("/")


def encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(
            body, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEventError(
            f"this is no JSON ({error}); use texts, numbers, booleans, lists and mappings"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__name__} is none of JSON's types")


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _may_repeat(
    answer: httpx.Response | None, failure: Exception | None, *, repeatable: bool
) -> bool:
    if answer is not None:
        return repeatable and answer.status_code in _PASSING and not _is_lasting(answer)
    return isinstance(failure, _NEVER_SENT) or (
        repeatable and isinstance(failure, httpx.TransportError)
    )


def _is_lasting(answer: httpx.Response) -> bool:
    """Whether the service itself says that trying again does not help."""
    try:
        error = error_of(answer.status_code, answer.json())
    except ValueError:
        return False
    return error is not None and not isinstance(error, UnavailableError)
