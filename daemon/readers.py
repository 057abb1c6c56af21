"""Readers: who reads a version of one stream for the daemon, and is to stop when the version is withdrawn."""

from __future__ import annotations

import threading


class Readers:
    """Events by version. Its methods are called on the event loop; readers look at their event from any thread."""

    def __init__(self) -> None:
        self._events: dict[bytes, set[threading.Event]] = {}

    def watch(self, manifest: bytes) -> threading.Event:
        """An event that is set when a version is withdrawn. Give it back with `unwatch`."""
        event = threading.Event()
        self._events.setdefault(manifest, set()).add(event)
        return event

    def unwatch(self, manifest: bytes, event: threading.Event) -> None:
        """Give an event of `watch` back."""
        events = self._events.get(manifest, set())
        events.discard(event)
        if not events:
            self._events.pop(manifest, None)

    def cut_off(self, manifest: bytes) -> None:
        """A version was withdrawn."""
        for event in self._events.get(manifest, ()):
            event.set()
