"""A schema registry over HTTP, and the wire format that goes with it.

A message in the wire format is a zero byte, four bytes of a schema's id, and the value.
"""

import base64
import json
import logging
import os
import struct
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from opal_lake.clock import doubled_pause_s
from opal_lake.errors import InvalidInputError
from opal_stream.errors import RegistryError
from opal_stream.formats.references import Reference, RegisteredSchema, check_answer, resolve

HEAD_BYTES = 5
AVRO, JSON = "AVRO", "JSON"  # as a registry names the kinds of schemas
FORMATS_OF_KIND = {
    AVRO: "avro, or debezium-avro",
    JSON: "json-registry, or debezium-json-registry",
}
LOGIN = "SCHEMA_REGISTRY_LOGIN"  # user:password, from the environment
_TRIES, _FIRST_PAUSE_S, _TIMEOUT_S = 6, 0.2, 10.0
_FINAL = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
)
# Answers of a proxy while the registry is away: a moment later the registry may answer
_AWAY = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
logger = logging.getLogger(__name__)


class UnknownSchemaError(ValueError):
    """A schema that a message names, and the registry does not have."""


class RefusedSchemaError(UnknownSchemaError):
    """A schema that a message names, and the stream cannot read.

    The schema is of another kind or has wrong references, or the answer is not a schema.
    """


class _NotGivenError(Exception):
    """A registry's answer that refuses a request, or that has nothing at its path."""

    def __init__(self, code: int) -> None:
        super().__init__(f"HTTP Error {code}")
        self.code = code


class SchemaRegistry:
    """A client of a registry that asks for each id once: ids never change meaning."""

    def __init__(self, url: str, kind: str = AVRO) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise InvalidInputError(
                f"the schema registry {url!r} is not an address; write http://host:port"
            )
        self.url = url.rstrip("/")
        self._kind = kind
        self._schemas: dict[int, RegisteredSchema] = {}
        self._refused: dict[int, str] = {}  # why
        self._unknown: dict[int, tuple[float, str]] = {}  # since when, and what is missing
        self._subjects: dict[int, list[str]] = {}  # by schema
        self._versions: dict[str, list[int]] = {}  # by subject
        self._answers: dict[Reference, Any] = {}
        self._gives_versions = True

    def schema(self, number: int) -> RegisteredSchema:
        """Return a schema by its id, with the schemas that it refers to.

        An id that the registry does not know may be known a second later, and so may a reference.
        """
        if number in self._refused:
            raise RefusedSchemaError(self._refused[number])
        if number not in self._schemas:
            since, missing = self._unknown.get(number, (float("-inf"), ""))
            if time.monotonic() - since < 1:
                raise UnknownSchemaError(missing)
            self._schemas[number] = self._schema_of_id(number)
        return self._schemas[number]

    def versions(self, number: int) -> list[RegisteredSchema]:
        """Return all versions of a schema's subjects by name, the newest version first.

        The registry is asked once for each version, and again for the list of a subject that lacks
        this schema. The result is empty if the registry does not give versions. Versions with wrong
        references are left out. Raises UnknownSchemaError for a missing reference: it may exist a
        moment later.
        """
        if number not in self._subjects:
            self._subjects[number] = self._subjects_of_id(number)
        schemas: list[RegisteredSchema] = []
        for subject in self._subjects[number]:
            for version in sorted(self._versions[subject], reverse=True):
                reference = Reference(subject=subject, version=version)
                answer = self._answers[reference]
                try:
                    check_answer(answer, str(reference))
                    schemas.append(self._resolved(answer, str(reference)))
                except UnknownSchemaError:
                    raise
                except ValueError:
                    continue
        return schemas

    def knows(self, number: int) -> bool:
        """Return whether the id was asked for before, also in vain."""
        return any(number in known for known in (self._schemas, self._refused, self._unknown))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without times: its clock is another one."""
        return {
            "url": self.url,
            "_kind": self._kind,
            "_schemas": dict(self._schemas),
            "_refused": dict(self._refused),
            "_unknown": dict.fromkeys(self._unknown, (float("-inf"), "")),
            "_subjects": dict(self._subjects),
            "_versions": dict(self._versions),
            "_answers": dict(self._answers),
            "_gives_versions": self._gives_versions,
        }

    def _check_kind(self, number: int, kind: str | None) -> None:
        """Refuse a schema of another kind: its bytes mean something else."""
        if kind in (None, self._kind):
            return
        if kind in FORMATS_OF_KIND:
            remedy = f"read the topic with format={FORMATS_OF_KIND[kind]!r}"
        else:
            remedy = "streams read Avro and JSON: have the producer write one of the two"
        self._refused[number] = (
            f"schema {number} of {self.url} is {kind}, and the stream reads {self._kind}; {remedy}"
        )
        raise RefusedSchemaError(self._refused[number])

    def _schema_of_id(self, number: int) -> RegisteredSchema:
        what = f"schema {number}"
        try:
            missing = f"the schema registry has no {what}"
            answer = self._given(f"/schemas/ids/{number}", what, missing)
            check_answer(answer, what)
            self._check_kind(number, answer.get("schemaType"))
            return self._resolved(answer, what)
        except RefusedSchemaError:
            raise
        except UnknownSchemaError as error:
            self._unknown[number] = time.monotonic(), str(error)
            raise
        except ValueError as error:
            self._refused[number] = f"{error} (of schema {number} of {self.url})"
            raise RefusedSchemaError(self._refused[number]) from error

    def _resolved(self, answer: Any, what: str) -> RegisteredSchema:
        """Return a schema with its references, which are only needed for Avro."""
        if self._kind != AVRO:
            return RegisteredSchema(text=answer["schema"])
        return resolve(answer, what, self._referred)

    def _referred(self, reference: Reference, what: str) -> Any:
        if reference not in self._answers:
            missing = f"the schema registry has no {reference}, which {what} refers to"
            self._answers[reference] = self._given(_path(reference), str(reference), missing)
        check_answer(self._answers[reference], str(reference))
        return self._answers[reference]

    def _given(self, path: str, what: str, missing: str) -> Any:
        """Return an answer; raise UnknownSchemaError where it is missing."""
        try:
            return self._fetch(path, what)
        except _NotGivenError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise self._failed(what, error) from error
            raise UnknownSchemaError(missing) from error

    def _subjects_of_id(self, number: int) -> list[str]:
        """Return the subjects of a schema by name, and fetch their versions.

        There are none where the registry does not give them.
        """
        if not self._gives_versions:
            return []
        what = f"the versions of schema {number}"
        try:
            uses = self._fetch(f"/schemas/ids/{number}/versions", what)
            for use in uses:
                self._take_versions(use["subject"], use["version"], what)
            subjects = sorted({use["subject"] for use in uses})
        except (_NotGivenError, KeyError, TypeError) as error:
            # Other codes than 404 are about the caller or the registry, not about this schema
            is_of_all = isinstance(error, _NotGivenError) and error.code != HTTPStatus.NOT_FOUND
            self._gives_versions = not is_of_all
            self._warn_without_versions(number, repr(error))
            return []
        if not any(self._versions[subject] for subject in subjects):
            self._warn_without_versions(number, "none is left, as of a deleted subject")
        return subjects

    def _take_versions(self, subject: str, version: int, what: str) -> None:
        """Fetch the unknown versions of a subject, if this version is one of them."""
        if version in self._versions.get(subject, ()):
            return
        versions = self._fetch(_versions_path(subject), what)
        for listed in versions:
            reference = Reference(subject=subject, version=listed)
            if reference not in self._answers:
                self._answers[reference] = self._fetch(_path(reference), what)
        self._versions[subject] = versions

    def _warn_without_versions(self, number: int, why: str) -> None:
        logger.warning(
            "%s does not give the versions of schema %d (%s): a new column has the type that the "
            "first message with it has",
            self.url,
            number,
            why,
        )

    def _fetch(self, path: str, what: str) -> Any:
        failure: Exception | None = None
        for attempt in range(1, _TRIES + 1):
            try:
                with urllib.request.urlopen(self._request(path), timeout=_TIMEOUT_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code in _FINAL:
                    raise _NotGivenError(error.code) from error
                failure = error
            except (OSError, ValueError) as error:
                failure = error
            if attempt < _TRIES:
                time.sleep(doubled_pause_s(attempt, _FIRST_PAUSE_S))
        if isinstance(failure, urllib.error.HTTPError) and failure.code not in _AWAY:
            raise _NotGivenError(failure.code) from failure
        raise self._failed(what, failure)

    def _failed(self, what: str, failure: Exception | None) -> RegistryError:
        return RegistryError(
            f"{self.url} did not give {what}: {failure}; "
            "nothing of these messages was committed, try again"
        )

    def _request(self, path: str) -> urllib.request.Request:
        request = urllib.request.Request(
            self.url + path, headers={"Accept": "application/vnd.schemaregistry.v1+json"}
        )
        if login := os.environ.get(LOGIN):
            encoded_login = base64.b64encode(login.encode()).decode()
            request.add_header("Authorization", f"Basic {encoded_login}")
        return request


def _versions_path(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions"


def _path(reference: Reference) -> str:
    return f"{_versions_path(reference.subject)}/{reference.version}"


def schema_id(value: bytes) -> int:
    """Return the id of the schema of a value in the wire format."""
    if len(value) < HEAD_BYTES or value[0] != 0:
        raise ValueError(
            "the message does not begin with a zero byte and the id of a schema: it was not "
            "written with a schema registry"
        )
    return int(struct.unpack(">I", value[1:HEAD_BYTES])[0])


def first_unseen(registry: SchemaRegistry, values: "list[bytes | None]") -> int | None:
    """Return the position of the first value with an id that was never asked for."""
    is_settled: dict[bytes, bool] = {}  # by head: True if the registry need not be asked
    for position, value in enumerate(values):
        head = b"" if value is None else value[:HEAD_BYTES]
        if head not in is_settled:
            has_id = len(head) == HEAD_BYTES and head[0] == 0
            is_settled[head] = not has_id or registry.knows(schema_id(head))
        if not is_settled[head]:
            return position
    return None
