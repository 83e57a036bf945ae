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
    """Return the variables with their defaults."""
    defaults = set(VARIABLE.findall(FILE.read_text()))
    # Two defaults of one variable would be a trap
    assert len({name for name, _ in defaults}) == len(defaults), sorted(defaults)
    return dict(defaults)


def own_services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the services that run our images."""
    services = compose["services"].items()
    return {name: service for name, service in services if service["image"].startswith("opal-")}


def folders_of(service: Mapping[str, Any]) -> dict[str, Path]:
    """Return the folders of the repository that a service sees, by their paths in it."""
    folders = {}
    for volume in service.get("volumes", ()):
        source, target = volume.split(":")[:2]
        if source.startswith("../"):
            folders[target] = (FILE.parent / source).resolve()
    return folders
