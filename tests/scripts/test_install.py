"""scripts/install: the unit it puts in place, and the daemon under a real service manager."""

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_fleet import free_port
from support.checkpoints import files_of, model, write
from support.programs import later_program
from support.systemd import manager_of, missing

from patchswarm.daemon.local.client import Client

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "scripts" / "install"
COMMAND = Path(sys.executable).parent / "patchswarm"
HOME = "var/lib/patchswarm"

# The interpreter may lie where only root looks; a watchdog of a minute would be a test of a minute.
FOR_THE_TEST = """
[Unit]
DefaultDependencies=no
[Service]
User=root
Group=root
WatchdogSec=4s
StandardOutput=null
StandardError=append:/run/patchswarm.log
"""


def install(*arguments, expect=0):
    done = subprocess.run([INSTALL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def staged(tmp_path):
    """What the system-wide installation puts in place."""
    install("--root", str(tmp_path / "root"), "--command", str(COMMAND))
    return tmp_path / "root"


def unit_in(root):
    return root / "etc/systemd/system/patchswarm.service"


@pytest.mark.skipif(not Path("/usr/bin/systemd-analyze").exists(), reason="systemd is not installed")
def test_the_unit_is_valid_and_leaves_little_exposed(staged):
    subprocess.run(["systemd-analyze", "verify", unit_in(staged)], check=True)
    line = ["systemd-analyze", "security", "--offline=true", "--no-pager", unit_in(staged)]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    exposure = re.search(r"Overall exposure level for patchswarm\.service: ([0-9.]+)", said)
    print(exposure[0])
    assert float(exposure[1]) <= 2.0


def test_a_second_installation_replaces_the_unit_and_a_removal_leaves_the_state(staged):
    home = staged / HOME
    home.mkdir(parents=True)
    (home / "format").write_text("kept")
    unit_in(staged).write_text("old")
    install("--root", str(staged), "--command", str(COMMAND))
    assert f"ExecStart={COMMAND} daemon" in unit_in(staged).read_text()
    install("--root", str(staged), "--remove")
    assert not unit_in(staged).exists()
    assert (home / "format").read_text() == "kept"
    assert "no unit at" in install("--root", str(staged), "--remove", expect=2)


def test_a_wrong_command_line_is_one_clear_line(tmp_path):
    assert "unknown option --sytem" in install("--sytem", expect=2)
    assert "absolute path" in install("--root", str(tmp_path), "--command", "patchswarm", expect=2)
    assert "no such program" in install("--root", str(tmp_path), "--command", "/nowhere/patchswarm", expect=2)


class Service:
    """The daemon as a unit of a manager."""

    def __init__(self, manager):
        self.manager = manager
        self.client = Client(manager.root / HOME / "patchswarm.sock")

    def control(self, verb, timeout_s=300):
        self.manager.run("systemctl", verb, "patchswarm", timeout_s=timeout_s)

    def run(self, *arguments):
        """A command of the program, as an operator types it on this host."""
        return self.manager.run("env", f"PATCHSWARM_HOME=/{HOME}", str(COMMAND), *map(str, arguments), timeout_s=120)

    def install(self, staged, command):
        """What scripts/install does to a host that runs: another unit in place, and the daemon restarted."""
        install("--root", str(staged), "--command", str(command))
        unit = self.manager.root / "run/systemd/system/patchswarm.service"
        unit.write_text(unit_in(staged).read_text())
        self.manager.run("systemctl", "daemon-reload")
        self.control("try-restart")

    @property
    def pid(self):
        return int(self.manager.show("patchswarm", "MainPID"))

    @property
    def log(self):
        return (self.manager.root / "run/patchswarm.log").read_text()

    def restarted(self, before, within_s=60):
        """Wait until another process is ready."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            state = self.manager.show("patchswarm", "ActiveState")
            if state == "active" and self.pid not in (0, before):
                return
            time.sleep(0.1)
        pytest.fail(f"not restarted: {self.manager.run('systemctl', 'status', 'patchswarm', check=False)}\n{self.log}")


@pytest.fixture
def service(staged, tmp_path):
    units = tmp_path / "units"
    (units / "patchswarm.service.d").mkdir(parents=True)
    (units / "patchswarm.service").write_text(unit_in(staged).read_text())
    (units / "patchswarm.service.d" / "test.conf").write_text(FOR_THE_TEST)
    with manager_of(units) as manager:
        service = Service(manager)
        service.run("init", "--site", "a", "--listen", f"127.0.0.1:{free_port()}")
        yield service


@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(missing()), reason=f"a service manager of its own needs {missing()}")
def test_a_manager_starts_watches_reloads_and_stops_the_daemon(service):
    service.control("start")
    assert service.client.streams() == []  # it answers as soon as it says that it is ready

    first = service.pid
    service.manager.kill("patchswarm", signal.SIGKILL)
    service.restarted(first)
    assert service.client.streams() == []

    second = service.pid
    service.manager.kill("patchswarm", signal.SIGSTOP)  # lives, and does nothing: what the watchdog is for
    service.restarted(second)
    assert service.client.streams() == []

    config = service.manager.root / HOME / "config.toml"
    config.write_text(
        config.read_text().replace('# upload = ""', 'upload = "2Gbit/s"').replace("# slots = 2", "slots = 3")
    )
    service.control("reload")
    until = time.monotonic() + 10
    while "after a restart" not in service.log and time.monotonic() < until:
        time.sleep(0.05)
    assert '"applied":["limits.upload"]' in service.log
    assert '"keys":["storage.slots"]' in service.log

    began = time.monotonic()
    service.control("stop")
    assert time.monotonic() - began < 5
    assert service.manager.show("patchswarm", "Result") == "success"
    service.control("start")
    assert service.client.streams() == []


@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(missing()), reason=f"a service manager of its own needs {missing()}")
def test_an_upgrade_and_the_way_back_keep_what_is_served(service, staged):
    later = Path("/opt/later/patchswarm")  # where the unit may look
    later_program(staged / "opt/later")
    shutil.copytree(staged / "opt/later", service.manager.root / "opt/later")
    service.control("start")
    directory = write(service.manager.root / "srv/model", model())
    service.run("publish", "/srv/model", "--stream", "qwen")
    first = service.client.version("qwen")
    served = service.manager.root / first.path.removeprefix("/")
    assert files_of(served) == files_of(directory)
    inodes = {path.name: path.stat().st_ino for path in served.iterdir()}
    node = service.client.node().node

    for command in (later, COMMAND):
        before = service.pid
        service.install(staged, command)
        assert service.pid not in (0, before)
        runs = service.manager.run("cat", f"/proc/{service.pid}/cmdline")
        assert ("patchswarm.daemon" in runs) is (command == later), "the program that was installed last"
        assert service.client.node().node == node
        assert service.client.version("qwen").path == first.path
        assert {path.name: path.stat().st_ino for path in served.iterdir()} == inodes, "nothing was made anew"
