"""Containers without an engine: images by buildah, and a process in one with a read-only root, no capability and any user id.

A process sees its image's files, a /tmp and a /var/lib/opal of its own and this machine's network; it is the first of its process
namespace, so that killing it kills all that it started, as in a container.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
BASE = "localhost/opal-base:bookworm"
USER = 123_456  # of no /etc/passwd
AUTHORITIES = Path("/usr/local/share/ca-certificates")
_ENTER = """
set -eu
root=$1 tmp=$2 state=$3 run=$4 dags=$5 user=$6
shift 6
mount --make-rprivate /
mount --bind "$root" "$root"
mkdir -p "$root/opt/dags"
touch "$root/etc/hosts" "$root/etc/resolv.conf"
mount -o remount,bind,ro "$root"
mount --bind "$tmp" "$root/tmp"
mount --bind "$state" "$root/var/lib/opal"
mount --bind "$run" "$root/run"
mount --bind "$dags" "$root/opt/dags"
mount --bind /etc/hosts "$root/etc/hosts"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
cd /
exec chroot "$root" /usr/bin/setpriv --reuid "$user" --regid 0 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def missing() -> str | None:
    """Why no image can be built here."""
    if os.geteuid() != 0:
        return "images are built and run by root here, as there is no engine"
    absent = [tool for tool in ("buildah", "mmdebstrap", "unshare", "chroot") if shutil.which(tool) is None]
    return f"{', '.join(absent)} is not installed; on Debian: apt-get install buildah mmdebstrap" if absent else None


def buildah(*arguments: str, most_s: int = 1500) -> str:
    """What it prints. `OPAL_BUILDAH` holds arguments for each call, such as where its storage is."""
    command = ["buildah", "--storage-driver", "vfs", *os.environ.get("OPAL_BUILDAH", "").split(), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=most_s)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-4000:]}"
    return done.stdout.strip()


def is_known(name: str) -> bool:
    return name in [line.strip() for line in buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()]


def make_base(folder: Path) -> None:
    """Debian, as the registry's slim image has it, from Debian's packages; with this machine's own authorities, if it has some."""
    archive = folder / "base.tar"
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", str(archive)], check=True, timeout=600)
    container = buildah("from", "scratch")
    buildah("add", container, str(archive), "/")
    if AUTHORITIES.is_dir():
        buildah("add", container, str(AUTHORITIES), str(AUTHORITIES))
    buildah("commit", "--quiet", "--format", "docker", container, BASE)
    buildah("rm", container)
    archive.unlink()


def build(target: str) -> float:
    """Build an image; returns the seconds that it took."""
    began = time.monotonic()
    options = ["--isolation", "chroot", "--format", "docker", "--layers", "--ignorefile", "docker/Dockerfile.dockerignore"]
    buildah("build", *options, "--build-arg", f"BASE={BASE}", "--file", "docker/Dockerfile", "--target", target, "--tag", tag(target), ".")
    return time.monotonic() - began


def tag(target: str) -> str:
    return f"localhost/opal-{target}:test"


@dataclass(kw_only=True)
class Image:
    """An image, unpacked."""

    name: str
    container: str = ""

    @classmethod
    def unpack(cls, target: str) -> "Image":
        return cls(name=target, container=buildah("from", "--pull-never", tag(target)))

    @cached_property
    def root(self) -> Path:
        return Path(buildah("mount", self.container))

    @cached_property
    def config(self) -> dict[str, object]:
        """What an engine would go by: Env, Entrypoint, Cmd, User, Healthcheck, Labels, ExposedPorts."""
        return dict(json.loads(buildah("inspect", "--type", "image", tag(self.name)))["Docker"]["config"])

    @property
    def environment(self) -> dict[str, str]:
        lines = self.config["Env"]
        assert isinstance(lines, list)
        return dict(line.split("=", 1) for line in lines)

    def remove(self) -> None:
        buildah("rm", self.container)


@dataclass(kw_only=True)
class Container:
    """A process in an image. `folder` holds its /tmp, its /run and what it says; `state` is its /var/lib/opal, which others may share."""

    image: Image
    folder: Path
    state: Path
    dags: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    user: int = USER
    process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], entrypoint: Sequence[str] | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._entered([*self._entrypoint(entrypoint), *command]),
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, command: Sequence[str], entrypoint: Sequence[str] | None = None, most_s: int = 300) -> subprocess.CompletedProcess[str]:
        """To its end. With an empty entrypoint: beside the process that is running, as an engine does for health checks."""
        entered = self._entered([*self._entrypoint(entrypoint), *command])
        return subprocess.run(entered, env=self._environment(), capture_output=True, text=True, timeout=most_s)

    def wait_until_well(self, most_s: float = 240) -> None:
        end = time.monotonic() + most_s
        while (told := self.run(["opal-health"], [])).returncode != 0:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.folder.name} has ended: {self.words()}"
            assert time.monotonic() < end, f"{self.folder.name}: {told.stdout}{told.stderr}: {self.words()}"
            time.sleep(2)

    def kill(self, number: int = signal.SIGKILL, most_s: float = 30) -> int:
        """Signal what an engine would: the first process. Returns its exit code."""
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(number)
        return self.process.wait(most_s)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def _entrypoint(self, given: Sequence[str] | None) -> list[str]:
        own = self.image.config["Entrypoint"]
        assert isinstance(own, list)
        return [*(own if given is None else given)]

    def _environment(self) -> dict[str, str]:
        return {**self.image.environment, **self.environment, "PATH": f"{self.image.environment['PATH']}:/usr/sbin:/sbin"}

    def _entered(self, command: Sequence[str]) -> list[str]:
        folders = [self.folder / "tmp", self.state, self.folder / "run"]
        for path in folders:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o1777)
        place = self.folder / "run" / "secrets"
        for name, text in self.secrets.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
            (place / name).chmod(0o444)
        places = [str(path) for path in (self.image.root, *folders, self.dags)]
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", _ENTER, "enter", *places, str(self.user), *command]
