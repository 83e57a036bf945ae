"""The schemas that a registry's schema refers to, each by a subject and a version.

A version of a subject never changes, and so do the schemas that a schema refers to.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Schemas that one schema may refer to, directly or not. Resolving recurses to this depth at most
MAX_REFERENCES = 200
MAX_REFERENCE_BYTES = 8 << 20  # the texts of all schemas that one schema refers to
_SHOWN_LETTERS = 200  # letters of an answer that an error shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A version of a subject."""

    subject: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of subject {self.subject!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """The text of a schema, and the texts of all schemas that it refers to.

    A schema stands behind the schemas that it refers to itself.
    """

    text: str
    references: Mapping[Reference, str] = field(default_factory=dict)


def check_answer(answer: Any, what: str) -> None:
    """Raise ValueError for a registry's answer that is not a schema."""
    is_schema = (
        isinstance(answer, dict)
        and isinstance(answer.get("schema"), str)
        and isinstance(answer.get("schemaType"), str | None)
    )
    if not is_schema:
        raise ValueError(
            f"the schema registry answered {_shown(answer)} for {what}, which is not a schema"
        )


def resolve(answer: Any, what: str, fetch: Callable[[Reference, str], Any]) -> RegisteredSchema:
    """Return the schema of a checked answer with all schemas that it refers to.

    `fetch(reference, what)` returns the checked answer for a reference of the schema `what`.
    Raises ValueError for references in a circle, for too many, and for those without a fixed
    version.
    """
    texts: dict[Reference, str] = {}
    _collect(answer, what, fetch, texts, ())
    return RegisteredSchema(text=answer["schema"], references=texts)


def _collect(
    answer: Any,
    what: str,
    fetch: Callable[[Reference, str], Any],
    texts: dict[Reference, str],
    path: tuple[Reference, ...],
) -> None:
    """Add to `texts` the schemas that an answer refers to, directly or not.

    `path` are the references that led to the answer, from the first schema on.
    """
    root = path[0] if path else what
    for reference in _references(answer, what):
        if reference in path:
            raise ValueError(
                f"{what} refers to {reference}, which refers back to it: "
                "register schemas without a circle"
            )
        if reference in texts:
            continue
        if len(texts) + len(path) >= MAX_REFERENCES:
            raise ValueError(
                f"{root} refers to more than {MAX_REFERENCES} schemas, directly or through "
                "its references; register it with fewer references"
            )
        referred = fetch(reference, what)
        _collect(referred, str(reference), fetch, texts, (*path, reference))
        texts[reference] = referred["schema"]
        if sum(map(len, texts.values())) > MAX_REFERENCE_BYTES:
            limit = f"{MAX_REFERENCE_BYTES >> 20} MiB"
            raise ValueError(f"the schemas that {root} refers to have more than {limit}")


def _references(answer: Any, what: str) -> Iterator[Reference]:
    references = answer.get("references") or []
    if not isinstance(references, list):
        raise ValueError(f"{what} has references that are not a list: {_shown(references)}")
    for given in references:
        if not isinstance(given, dict):
            raise ValueError(f"{what} has a reference that is not an object: {_shown(given)}")
        subject: Any = given.get("subject")
        version: Any = given.get("version")
        is_fixed = isinstance(version, int) and version > 0  # -1 is the latest, whichever it is
        if not isinstance(subject, str) or not is_fixed:
            raise ValueError(
                f"{what} has a reference without a subject or a fixed version: {_shown(given)}"
            )
        yield Reference(subject=subject, version=version)


def _shown(given: Any) -> str:
    text = json.dumps(given)
    if len(text) <= _SHOWN_LETTERS:
        return text
    return f"{text[:_SHOWN_LETTERS]}..."
