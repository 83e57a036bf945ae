"""Images without an engine: buildah's store in a folder of its own, and unpacked images.

The base image is made from Debian's packages.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "localhost/opal-base:bookworm"
AUTHORITIES = Path("/usr/local/share/ca-certificates")
NEEDED_GB = 15  # disk space for what is built, before it is removed


def missing() -> str | None:
    """Return the reason why images cannot be built here."""
    if os.geteuid() != 0:
        return "images are built and run by root here, without an engine"
    tools = ("buildah", "mmdebstrap", "unshare", "chroot")
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        return (
            f"{', '.join(absent)} is not installed; on Debian: apt-get install buildah mmdebstrap"
        )
    inner = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True
    )
    if inner.returncode != 0:
        return f"this machine gives no namespaces: {inner.stderr.strip()}"
    free_gb = shutil.disk_usage(_parent()).free / 1e9
    if free_gb < NEEDED_GB:
        return f"{_parent()} has {free_gb:.1f} GB free, and the images need {NEEDED_GB}"
    return None


def _parent() -> Path:
    # A store that is removed is in /var/tmp: /tmp may be memory
    return Path(os.environ.get("OPAL_IMAGES", "/var/tmp"))


@contextmanager
def opened() -> Iterator["Store"]:
    """Open a store with the base in it, and remove it after the block.

    Where OPAL_IMAGES names a folder, the store stays there, with its layers.
    """
    if "OPAL_IMAGES" in os.environ:
        store = Store(folder=_parent())
        store.ensure_base()
        yield store
        return
    store = Store(folder=Path(tempfile.mkdtemp(prefix="opal-images-", dir=_parent())))
    try:
        store.ensure_base()
        yield store
    finally:
        store.remove()


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder in which buildah keeps images and containers."""

    folder: Path

    @cached_property
    def driver(self) -> str:
        """The driver of layers: overlays share them, and vfs copies each."""
        tried = subprocess.run(self._command("overlay", "images", "--quiet"), capture_output=True)
        return "overlay" if tried.returncode == 0 else "vfs"

    def _command(self, driver: str, *arguments: str) -> list[str]:
        places = [
            "--root",
            str(self.folder / "root"),
            "--runroot",
            str(self.folder / "run"),
            "--storage-driver",
            driver,
        ]
        return ["buildah", *places, *arguments]

    def buildah(self, *arguments: str, most_s: int = 1500) -> str:
        """Run buildah, and return what it prints."""
        done = subprocess.run(
            self._command(self.driver, *arguments),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=most_s,
        )
        assert done.returncode == 0, (
            f"buildah {' '.join(arguments)}: {(done.stdout + done.stderr)[-4000:]}"
        )
        return done.stdout.strip()

    def ensure_base(self) -> None:
        """Make the base image from Debian's packages, if the store lacks it.

        It is like the registry's slim image, with this machine's own authorities.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if BASE in self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return
        archive = self.folder / "base.tar"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", str(archive)],
            check=True,
            timeout=600,
        )
        container = self.buildah("from", "scratch")
        self.buildah("add", container, str(archive), "/")
        if AUTHORITIES.is_dir():
            self.buildah("add", container, str(AUTHORITIES), str(AUTHORITIES))
        self.buildah("commit", "--quiet", "--format", "docker", container, BASE)
        self.buildah("rm", container)
        archive.unlink()

    def build(self, target: str) -> float:
        """Build an image, and return the seconds that it took."""
        began = time.monotonic()
        # Layers are kept: the next target begins with the same ones
        options = [
            "--isolation",
            "chroot",
            "--format",
            "docker",
            "--layers",
            "--ignorefile",
            "docker/Dockerfile.dockerignore",
        ]
        named = ["--file", "docker/Dockerfile", "--target", target, "--tag", tag(target)]
        self.buildah("build", *options, "--build-arg", f"BASE={BASE}", *named, ".")
        return time.monotonic() - began

    def unpack(self, target: str) -> "Image":
        return Image(
            store=self, name=target, container=self.buildah("from", "--pull-never", tag(target))
        )

    def remove(self) -> None:
        subprocess.run(self._command(self.driver, "rm", "--all"), capture_output=True)
        subprocess.run(
            ["umount", "--recursive", str(self.folder / "root" / "overlay")], capture_output=True
        )
        shutil.rmtree(self.folder)


def tag(target: str) -> str:
    return f"localhost/opal-{target}:test"


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image, unpacked."""

    store: Store
    name: str
    container: str

    @cached_property
    def root(self) -> Path:
        return Path(self.store.buildah("mount", self.container))

    @cached_property
    def config(self) -> dict[str, object]:
        """The settings for an engine, such as Env, Entrypoint, Cmd and User."""
        text = self.store.buildah("inspect", "--type", "image", tag(self.name))
        return dict(json.loads(text)["Docker"]["config"])

    @property
    def environment(self) -> dict[str, str]:
        lines = self.config["Env"]
        assert isinstance(lines, list)
        return dict(line.split("=", 1) for line in lines)

    @cached_property
    def size_mb(self) -> int:
        """The size of its files, with the layers of another image that it begins with."""
        sizes = subprocess.run(
            ["du", "-sm", "--one-file-system", str(self.root)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return int(sizes.split()[0])

    def remove(self) -> None:
        self.store.buildah("rm", self.container)
