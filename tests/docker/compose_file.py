"""docker/compose.yaml, as an engine reads it: merged, and with the defaults of its variables."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker" / "compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def read_compose() -> dict[str, Any]:
    return dict(yaml.safe_load(VARIABLE.sub(r"\2", FILE.read_text())))


def variables() -> dict[str, str]:
    """Names and defaults; one that has two defaults would be a trap."""
    found = set(VARIABLE.findall(FILE.read_text()))
    assert len({name for name, _ in found}) == len(found), sorted(found)
    return dict(found)


def own_services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those that run our images."""
    return {
        name: service
        for name, service in compose["services"].items()
        if service["image"].startswith("opal-")
    }


def folders_of(service: Mapping[str, Any]) -> dict[str, Path]:
    """The folders of the repository that a service sees, by where it sees them."""
    folders = {}
    for volume in service.get("volumes", ()):
        source, place = volume.split(":")[:2]
        if source.startswith("../"):
            folders[place] = (FILE.parent / source).resolve()
    return folders
