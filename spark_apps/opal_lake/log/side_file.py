"""A list that is too long for its commit: a file beside it, of lines of JSON, which the commit names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opal_lake import checked
from opal_lake.layout import PathKind, own_path


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFile:
    """Where the list lies."""

    path: str
    size: int
    crc32: int


def side_to_json(side: SideFile) -> list[Any]:
    return [side.path, side.size, side.crc32]


def side_from_json(data: Sequence[Any]) -> SideFile:
    return SideFile(path=own_path(PathKind.SIDE, data[0]), size=checked.count(data[1]), crc32=checked.crc(data[2]))
