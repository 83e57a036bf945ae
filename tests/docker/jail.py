"""Containers without an engine: a process in an image, with a read-only root and any user id.

It has no capability. A process sees its image's files, a /tmp and a /var/lib/opal of its own and
this machine's network. It is the first of its process namespace, so that killing it kills all that
it started, as in a container.
"""

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.docker.store import Image

USER = 123_456  # an id that /etc/passwd lacks
_ENTER = """
set -eu
root=$1 tmp=$2 state=$3 run=$4 mounts=$5 user=$6
shift 6
mount --make-rprivate /
mount --bind "$root" "$root"
for mount in $mounts; do mkdir -p "$root${mount#*:}"; done
touch "$root/etc/hosts" "$root/etc/resolv.conf"
mount -o remount,bind,ro "$root"
mount --bind "$tmp" "$root/tmp"
mount --bind "$state" "$root/var/lib/opal"
mount --bind "$run" "$root/run"
for mount in $mounts; do mount --bind "${mount%%:*}" "$root${mount#*:}"; done
mount --bind /etc/hosts "$root/etc/hosts"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
cd /
exec chroot "$root" /usr/bin/setpriv --reuid "$user" --regid 0 --clear-groups \\
  --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


@dataclass(kw_only=True)
class Container:
    """A process in an image.

    `folder` holds its /tmp, its /run and its log; `state` is its /var/lib/opal, which others may
    share. `mounts` are folders of this machine, by their paths in the process.
    """

    image: Image
    folder: Path
    state: Path
    mounts: Mapping[str, Path]
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

    def run(
        self, command: Sequence[str], entrypoint: Sequence[str] | None = None, most_s: int = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        With an empty entrypoint it runs next to the running process, as an engine runs health
        checks.
        """
        entered = self._entered([*self._entrypoint(entrypoint), *command])
        return subprocess.run(
            entered, env=self._environment(), capture_output=True, text=True, timeout=most_s
        )

    def wait_until_well(self, most_s: float = 240) -> None:
        end = time.monotonic() + most_s
        while (health := self.run(["opal-health"], [])).returncode != 0:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.folder.name} has ended: {self.words()}"
            assert time.monotonic() < end, (
                f"{self.folder.name}: {health.stdout}{health.stderr}: {self.words()}"
            )
            time.sleep(2)

    def kill(self, number: int = signal.SIGKILL, most_s: float = 30) -> int:
        """Signal the first process, as an engine would. Return its exit code."""
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
        return {
            **self.image.environment,
            **self.environment,
            "PATH": f"{self.image.environment['PATH']}:/usr/sbin:/sbin",
        }

    def _entered(self, command: Sequence[str]) -> list[str]:
        folders = [self.folder / "tmp", self.state, self.folder / "run"]
        for path in folders:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o1777)
        for name, text in self.secrets.items():
            secret = self.folder / "run" / "secrets" / name
            secret.parent.mkdir(parents=True, exist_ok=True)
            secret.write_text(text)
            secret.chmod(0o444)
        mounts = " ".join(f"{path}:{target}" for target, path in self.mounts.items())
        places = [*map(str, (self.image.root, *folders)), mounts]
        return [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            _ENTER,
            "enter",
            *places,
            str(self.user),
            *command,
        ]
