"""The files that are merged: which they are, in which order they come, and what their names say."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from opal_lake import checked
from opal_lake.errors import InvalidInputError
from opal_lake.s3a import is_s3
from opal_lake.source import BY_SUFFIX, has_secret
from opal_lake.storage import open_storage, options_for
from opal_lake.storage.paths import is_path
from opal_lake.storage.uris import local_root

_PATTERN = re.compile(r"[*?\[\]{}]")
_SUFFIX = re.compile(r"_(\d{1,18})(?:\.[A-Za-z][A-Za-z0-9]*)*$")
_FOLDER = re.compile(r"([^/=]+)=([^/]*)")
_LOG_FOLDERS = ("_opal", "_delta_log", ".hoodie")  # of Opal, Delta and Hudi tables
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """A file as it was listed. `root` and `path` are where it came from; `folders` are values that its folders name."""

    root: str
    path: str
    size: int
    modified_us: int
    folders: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def source(self) -> str:
        return f"{self.root.rstrip('/')}/{self.path}"

    @property
    def suffix(self) -> int | None:
        """The number after the last `_` of the name."""
        match = _SUFFIX.search(self.name)
        return int(match[1]) if match else None

    def is_deletes(self, prefix: str | None) -> bool:
        return prefix is not None and self.name.startswith(prefix)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> "Increment":
        """ValueError if it is none."""
        found = checked.mapped(data)
        folders = {
            checked.text(name): None if value is None else checked.text(value)
            for name, value in found["folders"].items()
        }
        return cls(
            root=checked.text(found["root"]),
            path=checked.text(found["path"]),
            size=checked.count(found["size"]),
            modified_us=checked.word(found["modified_us"]),
            folders=folders,
        )


def list_increments(
    paths: Sequence[str], options: Mapping[str, str], was_merged: Callable[[str], bool]
) -> list[Increment]:
    """The files behind paths, folders and patterns, each once, in the order of the paths and then of their names.

    A path without a pattern must be there, or have been merged before: else it is a mistake. So is what no listing has, a link for one.
    """
    for path in paths:
        _refuse_unlisted(path)
    listed = {path: list(_behind(path, options)) for path in paths}
    for path, found in listed.items():
        if not found and not _PATTERN.search(path) and not was_merged(path):
            raise InvalidInputError(
                f"there is no increment {path!r}: it is no file and no folder with files; correct the path"
            )
    return _each_once(listed.values())


def list_files(
    paths: Sequence[str], options_of: Callable[[str], Mapping[str, str]]
) -> list[Increment]:
    """As `list_increments`, of paths that perhaps have none. Each may lie in a store of its own."""
    return _each_once(_behind(path, options_of(path)) for path in paths)


def _each_once(listed: Iterable[Iterable[Increment]]) -> list[Increment]:
    found: dict[str, Increment] = {}
    for increments in listed:
        for increment in increments:
            found.setdefault(increment.source, increment)
    return list(found.values())


def in_order(increments: Sequence[Increment], order: str) -> list[Increment]:
    """The later, the later a mutation in it. Files of an equal suffix are in the order in which they were given."""
    if order != BY_SUFFIX:
        return list(increments)
    if unordered := [increment.source for increment in increments if increment.suffix is None]:
        raise InvalidInputError(
            f"{unordered[0]} has no suffix of up to 18 digits to order by, as products_1427764070.csv has; rename it, or order by a field"
        )
    return sorted(increments, key=lambda increment: increment.suffix or 0)


def folder_values(path: str) -> dict[str, str | None]:
    """What folders of a path say, as Hive writes them: `country=de`."""
    pairs = [match for part in path.split("/")[:-1] if (match := _FOLDER.fullmatch(part))]
    return {unquote(pair[1]): None if pair[2] == HIVE_NULL else unquote(pair[2]) for pair in pairs}


def is_hidden(path: str) -> bool:
    """Whether readers pass a file over."""
    return any(part.startswith((".", "_")) and "=" not in part for part in path.split("/"))


def _behind(path: str, options: Mapping[str, str]) -> Iterator[Increment]:
    if has_secret(path):
        raise InvalidInputError(
            "an increment's path holds credentials, which would end up in logs; give them to Spark's own settings"
        )
    base, rest = _split(path)
    storage = open_storage(base, options_for(base, options))
    pattern = re.compile(_regex(rest))
    fixed = _PATTERN.split(rest)[0]
    for stored in storage.list(fixed if is_path(f"{fixed}x") else ""):
        if not pattern.fullmatch(stored.path):
            continue
        _refuse_table(storage.uri, stored.path, _below(stored.path, rest))
        if not is_hidden(_below(stored.path, rest)):
            yield Increment(
                root=storage.uri,
                path=stored.path,
                size=stored.size,
                modified_us=stored.modified_us,
                folders=folder_values(f"{storage.uri}/{stored.path}"),
            )


def _refuse_table(root: str, path: str, below: str) -> None:
    """Raise InvalidInputError for a log's file: with it the data files of a table would be read."""
    parts = below.split("/")[:-1]
    log = next((part for part in parts if part in _LOG_FOLDERS), None)
    if log is not None:
        table = path.removesuffix(below) + "/".join(parts[: parts.index(log)])
        raise InvalidInputError(
            f"{root.rstrip('/')}/{table.rstrip('/')} is a table, as its folder {log} shows: only "
            "its log says which files count. Copy the rows that are meant into files first. "
            "Nothing was changed"
        )


def _refuse_unlisted(path: str) -> None:
    """Local files that are meant as well, but would be passed over."""
    base, rest = _split(path)
    if is_s3(base):
        return
    root, pattern = Path(local_root(base)), re.compile(_regex(rest), re.DOTALL)
    first = root if _PATTERN.search(rest) else root / rest
    for file in [
        *([first] if first != root else []),
        *_below_folder(first, _PATTERN.split(rest)[0] if first == root else ""),
    ]:
        found = file.relative_to(root).as_posix()
        if not pattern.fullmatch(found) or is_hidden(_below(found, rest)):
            continue
        if file.is_symlink():
            raise InvalidInputError(
                f"{file} is a symbolic link, which is not followed: give the path behind it. Nothing was changed"
            )
        if not is_path(found):
            raise InvalidInputError(
                f"{str(file)!r} has a control character in its name: rename it. Nothing was changed"
            )


def _below_folder(folder: Path, beginning: str) -> Iterator[Path]:
    """What is in a folder, at any depth, of the names in it that begin so: beside them may lie all of a disk."""
    for place, folders, files in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name.startswith(beginning)]
        yield from (Path(place) / name for name in sorted([*folders, *files]))


def _split(path: str) -> tuple[str, str]:
    """The folder that is listed, and what of it: what begins with the first pattern, or the last name."""
    head = _PATTERN.split(path)[0]
    slash = head.rfind("/") if len(head) < len(path) else path.rstrip("/").rfind("/")
    return path[: slash + 1] or ".", path.rstrip("/")[slash + 1 :]


def _below(path: str, rest: str) -> str:
    """What may not be hidden: names that nobody wrote out."""
    return (
        path.removeprefix(rest).lstrip("/")
        if not _PATTERN.search(rest) and path != rest
        else ""
        if path == rest
        else path
    )


def _regex(pattern: str) -> str:
    """A pattern of the file system; what lies in a folder that it names belongs to it."""
    parts = {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    depth, made = 0, ""
    for letter in re.findall(r"\[[^\]]*\]|.", pattern, re.DOTALL):
        depth += (letter == "{") - (letter == "}")
        if letter.startswith("[") and len(letter) > 2:
            made += letter.replace("[!", "[^")
        else:
            made += (
                parts[letter] if letter in parts and (letter != "," or depth) else re.escape(letter)
            )
    return rf"{made}(?:/.*)?"
