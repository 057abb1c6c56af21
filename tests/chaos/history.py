"""History: what each node's readers saw over time, and what of it may not be.

A reader on every node takes each version as it is committed, under a lease, and compares every file with what the
trainer published under that number. A version may be skipped; it may never be followed by an older one, and its bytes
may never be others.
"""

import threading

from support.checkpoints import files_of

from patchswarm.daemon.local.errors import LeaseGoneError, LocalError, UnknownLeaseError, UnknownVersionError

STREAM = "lab"
PAUSE_S = 0.1
WAIT_S = 2.0


class History:
    """`truth` maps each version to its files' digests; fill it before a version is published."""

    def __init__(self):
        self.truth = {}
        self.seen = {}
        self.wrong = []
        self._over = threading.Event()
        self._threads = []

    def follow(self, node):
        """Read on this node until `close`, over its restarts too."""
        self.seen[node.name] = []
        thread = threading.Thread(target=self._follow, args=(node,), name=f"reader of {node.name}")
        self._threads.append(thread)
        thread.start()

    def close(self):
        """Stop reading."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _follow(self, node):
        seen = self.seen[node.name]
        while not self._over.is_set():
            try:
                self._look(node, seen)
            except LocalError:
                self._over.wait(PAUSE_S)  # killed, starting, or the stream is not known there yet

    def _look(self, node, seen):
        newest = seen[-1] if seen else 0
        now = node.client.version(STREAM)  # what it serves at this moment, right after a restart too
        if now.version < newest:
            self.wrong.append(f"{node.name} went from version {newest} back to {now.version}")
        if now.version <= newest:
            now = node.client.wait(STREAM, newest + 1, WAIT_S)
        if now is None:
            return
        seen.append(now.version)
        self._compare(node, now.version)

    def _compare(self, node, version):
        try:
            with node.client.lease(STREAM, version) as lease:
                same = files_of(lease.path) == self.truth[version]
        except (LeaseGoneError, UnknownLeaseError, UnknownVersionError):
            return  # it moved on, or was killed, before the files were read: nothing was promised
        if not same:
            self.wrong.append(f"{node.name} serves other bytes than the trainer's as version {version}")
