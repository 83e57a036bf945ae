"""The files to merge: a list of them, their order, and the values that their names hold."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
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
    """A file as it was listed.

    `root` and `path` are where it came from; `folders` are values that its folders name.
    """

    root: str
    path: str
    size: int
    modified_us: int
    folders: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the file, without folders."""
        return self.path.rpartition("/")[2]

    @property
    def source(self) -> str:
        """The URI that it came from."""
        return f"{self.root.rstrip('/')}/{self.path}"

    @property
    def suffix(self) -> int | None:
        """The number after the last `_` of the name."""
        match = _SUFFIX.search(self.name)
        return int(match[1]) if match else None

    def is_deletes(self, prefix: str | None) -> bool:
        """Return whether its rows are deletes, as the prefix of its name says."""
        return prefix is not None and self.name.startswith(prefix)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> "Increment":
        """Return an increment of its JSON; raise ValueError for other data."""
        parts = checked.mapped(data)
        folders: dict[str, str | None] = {}
        for name, value in parts["folders"].items():
            folders[checked.text(name)] = None if value is None else checked.text(value)
        return cls(
            root=checked.text(parts["root"]),
            path=checked.text(parts["path"]),
            size=checked.count(parts["size"]),
            modified_us=checked.word(parts["modified_us"]),
            folders=folders,
        )


def list_increments(
    paths: Sequence[str], options: Mapping[str, str], was_merged: Callable[[str], bool]
) -> list[Increment]:
    """Return the files of paths, folders and patterns, each once.

    They are in the order of the paths, and then of their names. Raises InvalidInputError for a path
    without a pattern that neither exists nor was merged before, and for a file that listings leave
    out, such as a link.
    """
    for path in paths:
        _refuse_unlisted(path)
    listed = {path: list(_files_of(path, options)) for path in paths}
    for path, increments in listed.items():
        if not increments and not _PATTERN.search(path) and not was_merged(path):
            raise InvalidInputError(
                f"increment {path!r} does not exist: it is neither a file nor a folder with files; "
                "correct the path"
            )
    return _each_once(listed.values())


def list_files(
    paths: Sequence[str], options_of: Callable[[str], Mapping[str, str]]
) -> list[Increment]:
    """Return the files of paths, each once. A path may have no files.

    `options_of` returns the options of the store of a path.
    """
    return _each_once(_files_of(path, options_of(path)) for path in paths)


def _each_once(listed: Iterable[Iterable[Increment]]) -> list[Increment]:
    by_source: dict[str, Increment] = {}
    for increment in chain.from_iterable(listed):
        by_source.setdefault(increment.source, increment)
    return list(by_source.values())


def in_order(increments: Sequence[Increment], order: str) -> list[Increment]:
    """Return increments in the order in which they are merged.

    Files of an equal suffix keep the order of `increments`.
    """
    if order != BY_SUFFIX:
        return list(increments)
    unordered = [increment.source for increment in increments if increment.suffix is None]
    if unordered:
        raise InvalidInputError(
            f"{unordered[0]} has no suffix of up to 18 digits to order by, as "
            "products_1427764070.csv has; rename it, or order by a field"
        )
    return sorted(increments, key=lambda increment: increment.suffix or 0)


def folder_values(path: str) -> dict[str, str | None]:
    """Return the values in the folders of a path, as Hive writes them: `country=de`."""
    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        pair = _FOLDER.fullmatch(part)
        if pair is not None:
            name, value = unquote(pair[1]), unquote(pair[2])
            values[name] = None if pair[2] == HIVE_NULL else value
    return values


def is_hidden(path: str) -> bool:
    """Return whether readers ignore a file, by its name or a folder's name."""
    return any(part.startswith((".", "_")) and "=" not in part for part in path.split("/"))


def _files_of(path: str, options: Mapping[str, str]) -> Iterator[Increment]:
    if has_secret(path):
        raise InvalidInputError(
            "an increment's path holds credentials, which would end up in logs; "
            "give them to Spark's own settings"
        )
    base, rest = _split(path)
    storage = open_storage(base, options_for(base, options))
    pattern = re.compile(_regex(rest))
    fixed = _PATTERN.split(rest)[0]
    # A store refuses some beginnings: then all of its folder is listed
    for stored in storage.list(fixed if is_path(f"{fixed}x") else ""):
        if not pattern.fullmatch(stored.path):
            continue
        below = _below(stored.path, rest)
        _refuse_table(storage.uri, stored.path, below)
        if not is_hidden(below):
            yield Increment(
                root=storage.uri,
                path=stored.path,
                size=stored.size,
                modified_us=stored.modified_us,
                folders=folder_values(f"{storage.uri}/{stored.path}"),
            )


def _refuse_table(root: str, path: str, below: str) -> None:
    """Raise InvalidInputError for a file of a log: its table's data would be read."""
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
    """Raise InvalidInputError for local files that are meant, but are not listed."""
    base, rest = _split(path)
    if is_s3(base):
        return
    root = Path(local_root(base))
    pattern = re.compile(_regex(rest), re.DOTALL)
    first = root if _PATTERN.search(rest) else root / rest
    if first == root:
        files = _below_folder(root, _PATTERN.split(rest)[0])
    else:
        files = chain([first], _below_folder(first, ""))
    for file in files:
        name = file.relative_to(root).as_posix()
        if not pattern.fullmatch(name) or is_hidden(_below(name, rest)):
            continue
        if file.is_symlink():
            raise InvalidInputError(
                f"{file} is a symbolic link, which is not followed: give the path behind it. "
                "Nothing was changed"
            )
        if not is_path(name):
            raise InvalidInputError(
                f"{str(file)!r} has a control character in its name: rename it. Nothing was changed"
            )


def _below_folder(folder: Path, beginning: str) -> Iterator[Path]:
    """Yield files and folders below a folder, at any depth.

    Only those of its folders that begin so are entered: next to them may lie all of a disk.
    """
    for current, folders, files in os.walk(folder):
        if Path(current) == folder:
            folders[:] = [name for name in folders if name.startswith(beginning)]
        yield from (Path(current) / name for name in sorted([*folders, *files]))


def _split(path: str) -> tuple[str, str]:
    """Return the folder to list, and the rest of the path.

    The rest begins with the first name that has a pattern, or is the last name.
    """
    head = _PATTERN.split(path)[0]
    has_pattern = len(head) < len(path)
    slash = head.rfind("/") if has_pattern else path.rstrip("/").rfind("/")
    return path[: slash + 1] or ".", path.rstrip("/")[slash + 1 :]


def _below(path: str, rest: str) -> str:
    """Return the part of a path that `rest` does not write out.

    Only in this part, files and folders can be hidden.
    """
    if path == rest:
        return ""
    if _PATTERN.search(rest):
        return path
    return path.removeprefix(rest).lstrip("/")


def _regex(pattern: str) -> str:
    """Return the regular expression of a pattern of the file system.

    Files in a folder that the pattern names match, too.
    """
    parts = {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    depth = 0  # of braces: outside of them a comma is a letter
    regex = ""
    for letter in re.findall(r"\[[^\]]*\]|.", pattern, re.DOTALL):
        depth += (letter == "{") - (letter == "}")
        if letter.startswith("[") and len(letter) > 2:
            regex += letter.replace("[!", "[^")
        elif letter in parts and (letter != "," or depth):
            regex += parts[letter]
        else:
            regex += re.escape(letter)
    return rf"{regex}(?:/.*)?"
