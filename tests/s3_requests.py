"""The requests to moto's server while a block ran, by verb and by part of the table.

with counted(s3_options, "s3://lake/t") as requests:
    table.retain()
assert requests.verbs["GET"] <= 4, requests
"""

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote

VERBS = ("GET", "HEAD", "LIST", "PUT", "DELETE", "OTHER")
# A DELETE names its objects in the body, which the server does not record
_BATCH = "many objects"
_PART = re.compile(r"(?:(_opal/[^/]+|data)(?:/|\Z)|(_opal)/?\Z)")


@dataclass(slots=True, kw_only=True, repr=False)
class Requests:
    """The requests of a block, filled in at its end.

    A DELETE may name a thousand objects, and a LIST may return as many.
    """

    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.asked)

    @property
    def verbs(self) -> Counter[str]:
        return Counter(verb for verb, _ in self.asked)

    @property
    def parts(self) -> Counter[tuple[str, str]]:
        """The counts by verb and part: `("GET", "_opal/log")`, `("PUT", "data")`."""
        return Counter((verb, part_of(path)) for verb, path in self.asked)

    @property
    def repeated(self) -> Counter[str]:
        """Objects that were read more than once; ranges of a file count as reads of it."""
        reads = Counter(path for verb, path in self.asked if verb == "GET")
        return Counter({path: count for path, count in reads.items() if count > 1})

    def __repr__(self) -> str:
        verbs = ", ".join(f"{self.verbs[verb]} {verb}" for verb in VERBS if self.verbs[verb])
        lines = [f"{self.total} requests: {verbs}"]
        for (verb, part), count in sorted(self.parts.items()):
            lines.append(f"  {count:6} {verb:6} {part}")
        for path, count in sorted(self.repeated.items()):
            lines.append(f"  {count:6} times  {path}")
        return "\n".join(lines)


@contextmanager
def counted(options: Mapping[str, str], uri: str = "s3://lake") -> Iterator[Requests]:
    """Yield the requests of the block for everything below `uri`.

    They count whoever sent them: this process, its children, a JVM.
    """
    requests, root = Requests(), "/" + uri.partition("://")[2].rstrip("/") + "/"
    before, _ = _asked(options)
    yield requests
    after, log = _asked(options)
    since = log[len(log) - (after - before) :] if after > before else []
    assert len(since) == after - before, (
        f"the server remembers {len(log)} requests, the block sent {after - before}: "
        "count a smaller block"
    )
    for method, raw_path, query in since:
        verb, path = _read(method, raw_path, query)
        if f"{path}/".startswith(root) or path == _BATCH:
            requests.asked.append((verb, path))


def part_of(path: str) -> str:
    """Return the part of a path: `_opal/log` of `/lake/t/_opal/log/7.json`, or `data`.

    Any other path is returned unchanged.
    """
    part = None
    for part in _PART.finditer(path):
        if part[0].startswith("_opal"):
            break
    return path if part is None else part[1] or part[2]


def _asked(options: Mapping[str, str]) -> tuple[int, list[list[str]]]:
    with urllib.request.urlopen(options["endpoint_url"] + "/opal-requests", timeout=60) as answer:
        count, log = json.load(answer)
    return count, log


def _read(method: str, path: str, query: str) -> tuple[str, str]:
    asked, path = parse_qs(query, keep_blank_values=True), unquote(path)
    if method == "GET" and "list-type" in asked:
        return "LIST", f"{path.rstrip('/')}/{asked.get('prefix', [''])[0]}"
    if method == "POST" and "delete" in asked:
        return "DELETE", _BATCH
    known = method in VERBS and not {"uploads", "uploadId"} & asked.keys()
    return method if known else "OTHER", path
