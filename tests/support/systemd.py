"""A real system manager in namespaces of its own: units run in it as on a host, and none of it outlives the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MANAGER = Path("/lib/systemd/systemd")
HIERARCHIES = tuple(path for name in ("systemd", "unified") if (path := Path("/sys/fs/cgroup") / name).is_dir())

OUTSIDE = """
for group in "${@:4}"; do echo $$ >"$group/cgroup.procs"; done
exec unshare -m -p -C -i -u --fork --kill-child bash -c "$1" bash "$2" "$3"
"""

# A manager does to its machine whatever its units want: clean /tmp, set sysctls, write journals. So it gets a root of
# its own, the host's seen through an overlay in memory, and the host's is let go before the manager starts.
INSIDE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$2"
cd "$2"
mkdir above work root
mount -t overlay overlay -o lowerdir=/,upperdir=above,workdir=work root
cd root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
mkdir -p run/systemd/system oldroot
cp -r "$1"/. run/systemd/system
printf '[Unit]\\nDescription=nothing yet\\nDefaultDependencies=no\\n' >run/systemd/system/nothing.target
pivot_root . oldroot
umount -l /oldroot
cd /
export container=other
exec {manager} --system --unit=nothing.target --log-target=console --show-status=0
"""


def missing() -> str:
    """What this machine lacks for it; "" for nothing."""
    if os.geteuid() != 0:
        return "root"
    if not MANAGER.exists():
        return "systemd"
    if not HIERARCHIES:
        return "a cgroup hierarchy of systemd's own"
    tried = subprocess.run(
        ["unshare", "-m", "-p", "-C", "-i", "-u", "--fork", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "the right to make namespaces"


class Manager:
    """The running manager, as `systemctl` addresses it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def root(self) -> Path:
        """Its file system, seen from here."""
        return Path(f"/proc/{self._pid}/root")

    def run(self, *command: str, timeout_s: float = 60, check: bool = True) -> str:
        """Run a command beside it; its output. Raises CalledProcessError."""
        line = ["nsenter", "-t", str(self._pid), "-m", "-p", "-C", *command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, check=False)
        if check and done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", unit, "-p", name, "--value").strip()

    def kill(self, unit: str, number: signal.Signals) -> None:
        """Send a signal to a unit's main process."""
        self.run("systemctl", "kill", "--kill-who=main", f"--signal={number.name}", unit)


@contextlib.contextmanager
def manager_of(units: Path) -> Iterator[Manager]:
    """A manager that knows the unit files and drop-ins below `units`."""
    name = f"patchswarm-test-{os.getpid()}"
    groups = [hierarchy / name for hierarchy in HIERARCHIES]
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory(prefix="patchswarm-root-") as scratch:
        for group in groups:
            group.mkdir()
        try:
            outer = subprocess.Popen(
                ["bash", "-c", OUTSIDE, "bash", INSIDE.format(manager=MANAGER), units, scratch, *groups],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                yield _answering(outer, log)
            finally:
                outer.kill()  # the manager is the first process of its namespace: with it all others end
                outer.wait(10)
        finally:
            for group in groups:
                _remove(group)


def _answering(outer: subprocess.Popen[bytes], log: IO[str]) -> Manager:
    """Wait until the manager takes commands."""
    for _ in range(200):
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        if children:
            found = Manager(int(children[0]))
            with contextlib.suppress(subprocess.SubprocessError):
                if "running" in found.run("systemctl", "is-system-running", check=False):
                    return found
        if outer.poll() is not None:
            break
        time.sleep(0.05)
    log.seek(0)
    raise AssertionError(f"the manager did not start:\n{log.read()}")


def _remove(group: Path) -> None:
    """Remove a control group and those in it, which are folders without files of their own."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            for folder, _, _ in os.walk(group, topdown=False):
                Path(folder).rmdir()
            return
        time.sleep(0.05)
