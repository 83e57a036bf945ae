"""The environment archive: the packages that the Python processes of a cluster need.

The archive is for `spark-submit --archives environment.tar.gz#environment`. It holds opal-lake with
its metadata, other packages as they are installed here, and the script `bin/python`. The script
runs the node's own Python of the same minor version, with the archive's packages first on its path.

Python itself is left out. A virtual environment of venv-pack links to a Python at an absolute path,
which every node would need. A copied interpreter would refer to paths and libraries of another
machine. So a node needs a Python on its PATH, or OPAL_PYTHON set to its path; for nodes without a
Python, use an image. Spark is left out, too: it would conflict with the cluster's Spark.

The same packages give the same bytes, so caches of the archive work, and two archives can be
compared.
"""

import gzip
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from opal_lake.cli.progress import Step
from opal_lake.errors import InvalidInputError

OWN = "opal-lake"
OURS = ("lakechime", "opal_folder", "opal_lake", "opal_spark", "opal_stream", "pyspark_opal")
NEEDED = ("numpy", "pandas", "pyarrow", "pyroaring")
FOR_S3 = "boto3"
SPARKS = frozenset({"pyspark", "pyspark-client", "py4j"})
AIRFLOWS = re.compile(r"apache-airflow(-.*)?$|airflow-provider-opal$")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = PurePosixPath(f"lib/python{PYTHON}/site-packages")

# Files that no package uses at run time; they would be a third of the archive
_LEFT_OUT = re.compile(
    r"(^|/)__pycache__/|\.py[co]$|^(pandas|pyarrow)/tests/|^pyarrow/include/|^tests/kit/"
)
# Records of where and how a package was installed
_RECORDS = re.compile(r"\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|uv_cache\.json)$")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")

LAUNCHER = """\
#!/bin/sh
# Runs the Python {version} of this machine with the packages of this archive.
home=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 126
for candidate in "${{OPAL_PYTHON:-python{version}}}" python3 python; do
  found=$(command -v "$candidate") || continue
  [ "$found" -ef "$home/bin/python" ] && continue
  "$found" -c 'import sys; sys.exit(sys.version_info[:2] != {tuple})' >/dev/null 2>&1 || continue
  PYTHONPATH="$home/{packages}${{PYTHONPATH:+:$PYTHONPATH}}" exec "$found" "$@"
done
echo "opal: $home was packed with Python {version}, and $(uname -n) has none on its PATH;" \\
  "install it, or set OPAL_PYTHON to its path" >&2
exit 127
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A written archive."""

    path: Path
    packages: Mapping[str, str]
    size: int


class Packing:
    """The packing of an archive: it collects files, then writes them."""

    def __init__(self, extra: Sequence[str] = (), needed: Sequence[str] = NEEDED) -> None:
        self._step = Step(name="collecting packages")
        self.versions, self._files = collect(extra, needed)

    def step(self) -> Step:
        """Return the current step, for a progress line."""
        return self._step

    def write(self, target: Path, *, overwrite: bool = False) -> Packed:
        """Write the archive atomically; replace an existing one only with `overwrite`."""
        if not overwrite and target.exists():
            raise _exists_error(target)
        try:
            with tempfile.TemporaryDirectory(prefix=".opal-pack-", dir=target.parent) as folder:
                draft = Path(folder) / "draft"
                with draft.open("wb") as file:
                    self._write(file)
                if overwrite:
                    draft.replace(target)
                else:
                    os.link(draft, target)
        except FileExistsError as error:
            raise _exists_error(target) from error
        except OSError as error:
            raise InvalidInputError(
                f"{target} cannot be written: {error}; name another path with -o"
            ) from error
        return Packed(path=target, packages=self.versions, size=target.stat().st_size)

    def _write(self, file: io.BufferedWriter) -> None:
        texts = {"bin/python": launcher(), "opal-pack.json": manifest(self.versions)}
        with (
            # Without a name and a time, so that the same packages give the same bytes
            gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
        ):
            for name, text in texts.items():
                data = text.encode()
                is_executable = name.startswith("bin/")
                _add(archive, name, io.BytesIO(data), len(data), executable=is_executable)
            for number, (name, source) in enumerate(sorted(self._files.items())):
                self._step = Step(name="packing", done=number, total=len(self._files), noun="file")
                size = source.stat().st_size
                is_executable = os.access(source, os.X_OK)
                with source.open("rb") as content:
                    _add(archive, name, content, size, executable=is_executable)


def _exists_error(target: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{target} exists already: name another file with -o, or add --overwrite"
    )


def _add(
    archive: tarfile.TarFile, name: str, content: Iterable[bytes], size: int, *, executable: bool
) -> None:
    # Without an owner and a time, so that the same packages give the same bytes
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o755 if executable else 0o644
    # A file, for which typeshed has a private protocol
    archive.addfile(entry, content)  # type: ignore[arg-type]  # a file


def launcher() -> str:
    """Return the text of the archive's `bin/python`."""
    return LAUNCHER.format(version=PYTHON, tuple=tuple(sys.version_info[:2]), packages=PACKAGES)


def manifest(versions: Mapping[str, str]) -> str:
    """Return the description of the archive, as JSON."""
    description = {
        "python": PYTHON,
        "system": platform.system(),
        "machine": platform.machine(),
        "packages": dict(sorted(versions.items())),
    }
    return json.dumps(description, indent=2) + "\n"


def collect(extra: Sequence[str], needed: Sequence[str]) -> tuple[dict[str, str], dict[str, Path]]:
    """Return the packed distributions' versions, and the files by archive name.

    `extra` names distributions, and folders or modules of the user.
    """
    folders = [name for name in extra if _is_path(name)]
    packages = [name for name in extra if not _is_path(name)]
    others = closure([*needed, *packages])
    # The files of opal-lake itself are found by their modules: it may be installed as editable
    others.pop(OWN, None)
    own = _own_distribution()
    files: dict[str, Path] = {}
    for module in OURS:
        files.update(_files_of_folder(_module_folder(module)))
    for folder in folders:
        files.update(_files_of_folder(_checked_folder(folder)))
    files.update(_metadata_of(own))
    for distribution in others.values():
        files.update(_files_of(distribution))
    versions = {name: distribution.version for name, distribution in others.items()}
    return {OWN: own.version, **versions}, files


def default_packages() -> tuple[str, ...]:
    """Return the names of the distributions that are packed by default."""
    return (*NEEDED, FOR_S3) if _installed(FOR_S3) else NEEDED


def closure(names: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """Return distributions and all their requirements, by name.

    A name may have extras, such as `opal-lake[kafka]`.
    """
    distributions: dict[str, importlib.metadata.Distribution] = {}
    # A name with one extra; "" stands for the requirements without an extra
    followed: set[tuple[str, str]] = set()
    # A requirement, and the distribution that requires it; "" for a name of the user
    waiting = [(name, "") for name in names]
    while waiting:
        text, required_by = waiting.pop()
        name, extras = _name_and_extras(text)
        unfollowed = {(name, extra) for extra in ("", *extras)} - followed
        if not unfollowed or name in SPARKS:
            continue
        if AIRFLOWS.match(name):
            raise InvalidInputError(
                f"{name} does not belong on the cluster: leave out {required_by or name}"
            )
        distribution = _installed(name)
        if distribution is None:
            reason = f", and {required_by} needs it" if required_by else ""
            raise InvalidInputError(
                f"{name} is not installed here{reason}: pip install {name}, then pack again"
            )
        if not required_by:
            _check_extras(distribution, extras)
        followed |= unfollowed
        distributions[name] = distribution
        waiting += [(needed, name) for needed in _requirements(distribution, extras)]
    return dict(sorted(distributions.items()))


def _name_and_extras(requirement: str) -> tuple[str, frozenset[str]]:
    match = _REQUIREMENT.match(requirement)
    if match is None:
        return _normal(requirement), frozenset()
    listed = match[2] or ""
    extras = set()
    for extra in listed.split(","):
        if extra.strip():
            extras.add(_normal(extra.strip()))
    return _normal(match[1]), frozenset(extras)


def _check_extras(distribution: importlib.metadata.Distribution, extras: frozenset[str]) -> None:
    declared = {_normal(name) for name in distribution.metadata.get_all("Provides-Extra") or ()}
    for extra in sorted(extras - declared):
        known = ", ".join(sorted(declared)) or "none"
        name = distribution.metadata["Name"]
        raise InvalidInputError(f"{name} has no extra {extra!r}; its extras are: {known}")


def _requirements(
    distribution: importlib.metadata.Distribution, extras: frozenset[str]
) -> Iterator[str]:
    """Yield the requirements of a distribution and of some of its extras.

    A requirement with another condition (of the platform or of Python's version) is yielded only if
    it is installed here.
    """
    for text in distribution.requires or ():
        requirement, _, marker = text.partition(";")
        extra = _EXTRA.search(marker)
        if extra is not None and _normal(extra[1]) not in extras:
            continue
        is_conditional = bool(_EXTRA.sub("", marker).strip())
        if not is_conditional or _installed(_name_and_extras(requirement)[0]):
            yield requirement


def _installed(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _normal(name: str) -> str:
    """Return the normalized name of a distribution or extra, as PEP 503 defines it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _own_distribution() -> importlib.metadata.Distribution:
    own = _installed(OWN)
    if own is None:
        raise InvalidInputError(
            f"{OWN} is not installed here, so its metadata is missing: pip install {OWN}, "
            "then pack again"
        )
    return own


def _metadata_of(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution's .dist-info folder, by their archive names.

    Among them are the entry points of the commands and of the listeners of commits.
    """
    for file in distribution.files or ():
        inside = file.as_posix()
        if ".dist-info/" in inside and not _RECORDS.search(inside):
            yield str(PACKAGES / inside), Path(str(distribution.locate_file(file)))


def _files_of(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    name, listed = distribution.metadata["Name"], distribution.files
    if '"editable": true' in (distribution.read_text("direct_url.json") or ""):
        raise InvalidInputError(
            f"{name} is installed as editable, so its files lie elsewhere: "
            f"name its folder instead, such as ./src/{name}"
        )
    if listed is None:
        raise InvalidInputError(
            f"{name} does not list its files, probably because the operating system's package "
            f"manager installed it: run pip install {name}, then pack again"
        )
    for file in listed:
        inside = file.as_posix()
        if inside.startswith(("..", "/")):
            continue  # a script outside the packages, which names this machine's Python
        if _RECORDS.search(inside) or _LEFT_OUT.search(inside):
            continue
        source = Path(str(distribution.locate_file(file)))
        if not source.is_file():
            raise InvalidInputError(
                f"the file {source} of the package {name} is missing: install {name} again, "
                "then pack again"
            )
        yield str(PACKAGES / inside), source


def _files_of_folder(folder: Path) -> Iterator[tuple[str, Path]]:
    sources = [folder]
    if folder.is_dir():
        sources = [source for source in folder.rglob("*") if source.is_file()]
    for source in sources:
        inside = source.relative_to(folder.parent).as_posix()
        if not _LEFT_OUT.search(inside):
            yield str(PACKAGES / inside), source


def _module_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise InvalidInputError(
            f"the package {name} is not installed: pip install {OWN}, then pack again"
        )
    return Path(spec.origin).parent


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(".py") or name.startswith(".")


def _checked_folder(name: str) -> Path:
    path = Path(name).resolve()
    is_module = path.suffix == ".py" and path.is_file()
    if is_module or (path / "__init__.py").is_file():
        return path
    raise InvalidInputError(
        f"{name} is neither a module nor the folder of a package (one with an __init__.py): "
        "correct the path"
    )
