"""A machine on which a page's lines are run as they stand, but for the few words that mean another place.

| in the pages | here |
|---|---|
| `/var/lib/patchswarm` | the machine's home |
| `10.0.0.5:7340` | the head's address, on loopback |
| `0.0.0.0:7340` | the machine's own address, on loopback |
| `/checkpoints`, `/backup`, `/dev/shm`, `/tmp/weights` | folders of the test |
| `TOKEN` | what `patchswarm invite` printed last, on any machine |
| `NODE` | the head's id |
| `curl -s` | the same, but an answer that is an error fails |
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

from local_fleet import COMMAND, clean_environment

from .commands import lines_of

LINE_S = 120


class FailedError(AssertionError):
    """A line of a page does not do what the page says; the message has what it printed."""


class Running:
    """A program that goes on for ever; made when it has printed `until`."""

    def __init__(self, line, until, *, cwd, env):
        self._line, self._until, self._printed = line, until, []
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=cwd,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._settled = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._settled.wait(LINE_S) or self._process.poll() is not None:
            self._process.kill()
            raise FailedError(f"{line}: did not print {until!r} but {self._finish()}")

    def _read(self):
        with self._process.stdout as lines:
            for line in lines:
                self._printed.append(line)
                if self._until in line:
                    self._settled.set()
        self._process.wait()
        self._settled.set()

    def _finish(self):
        self._reader.join(LINE_S)
        return "".join(self._printed)

    def stop(self):
        """Ask it to end, which has to be well."""
        self._process.send_signal(signal.SIGTERM)
        printed = self._finish()
        if self._process.returncode != 0:
            raise FailedError(f"{self._line}: ended with {self._process.returncode}:\n{printed}")


class Machine:
    """A host with a home and an address. All machines of a page share the folder `root`, and what they `said`."""

    def __init__(self, root, name, addresses, *, said=None, env=None, words=None):
        self._said = {} if said is None else said
        self.home = root / name
        self._root = root
        self._words = {
            "/var/lib/patchswarm": str(self.home),
            "10.0.0.5:7340": addresses["head"],
            "0.0.0.0:7340": addresses[name],
            "/checkpoints": str(root / "checkpoints"),
            "/backup": str(root / "backup"),
            "/dev/shm": str(root / "shm"),
            "/tmp/weights": str(root / f"{name}-weights"),
            "curl -s ": "curl -sS --fail-with-body ",
            **(words or {}),
        }
        self._path = re.compile("|".join([r"\b(?:TOKEN|NODE)\b", *map(re.escape, self._words)]))
        self._env = clean_environment() | {
            "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(root / f"{name}-user"),
            **(env or {}),
        }
        self._work = root / f"{name}-work"
        self._work.mkdir()
        self._running = []

    def close(self):
        """End what was left running in the background."""
        with contextlib.ExitStack() as all_of_them:
            while self._running:
                all_of_them.callback(self._running.pop().stop)

    def here(self, text):
        """The text with this machine's places in it."""
        return self._path.sub(lambda found: (self._words | self._said).get(found[0], found[0]), text)

    def keep(self, block, until):
        """Start the one command of a block, which goes on for ever; it is running once it has printed `until`."""
        (line,) = map(self.here, lines_of(block.text))
        self._running.append(Running(line, until, cwd=self._work, env=self._env))

    def shell(self, block, until=""):
        """Run a block of shell, line after line. A line that ends in & goes on in the background once it is ready.

        With `until` each `patchswarm` line goes on for ever: it is stopped, and has to end well, when it printed that.
        What the last line printed.
        """
        printed = ""
        for line in map(self.here, lines_of(block.text)):
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                self._env[name] = value
            elif line.endswith("&"):
                self._running.append(Running(line.rstrip("& "), "ready", cwd=self._work, env=self._env))
            elif until:
                Running(line, until, cwd=self._work, env=self._env).stop()
            else:
                printed = self._done(["bash", "-eo", "pipefail", "-c", line], f"{block}: {line}")
                if line.startswith("patchswarm invite"):
                    self._said["TOKEN"] = printed.strip()
                if line.startswith("patchswarm init"):
                    self._said["NODE"] = printed.split()[1]
        return printed

    def python(self, block):
        """Run a block of Python; what it printed."""
        return self._done([sys.executable, "-W", "error", "-c", self.here(block.text)], str(block))

    def _done(self, arguments, what):
        done = subprocess.run(
            arguments,
            cwd=self._work,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise FailedError(f"{what}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout
