"""A daemon for commands: it answers as a real one would, and notes what it was asked."""

from pathlib import Path

from patchswarm.daemon.local.model import (
    HeadInfo,
    LastError,
    NodeStatus,
    PeerHead,
    PeerStatus,
    Progress,
    PublishProgress,
    PublishResult,
    SlotCheck,
    StreamState,
    StreamStatus,
    VersionInfo,
)

VERSION = VersionInfo(
    stream="qwen",
    epoch=0,
    version=7,
    label="step 700",
    manifest="ab" * 32,
    size_bytes=95_000_000,
    proven=True,
    path="/slots/qwen/v7",
    committed_at=1_700_000_000.0,
)
FOLLOWING = StreamStatus(
    stream="qwen",
    state=StreamState.FETCHING,
    current=VERSION,
    head=HeadInfo(epoch=0, version=9, manifest="cd" * 32),
    lag=2,
    lag_s=3.4,
    proven=True,
    progress=Progress(version=9, stage="fetch", done_bytes=25, total_bytes=100),
    last_error=LastError(at=1.0, detail="no peer had chunk 4"),
)
WAITING = StreamStatus(stream="tiny", state=StreamState.WAITING)
PEER = PeerStatus(
    node="ee" * 32,
    site="eu-west/b",
    addresses=["10.0.0.7:7340"],
    connected=True,
    rtt_ms=81.25,
    down_bytes_per_s=2.5 * 2**20,
    lanes=3,
    heads=[PeerHead(stream="qwen", epoch=0, version=9)],
)
AWAY = PeerStatus(node="ff" * 32, site="", addresses=[], connected=False)
RESULT = PublishResult(
    stream="qwen",
    epoch=0,
    version=8,
    label="step 800",
    manifest="cd" * 32,
    changed_fraction=0.00261,
    changed_elements=123_456,
    full_bytes=95_000_000,
    patch_bytes=245_000,
    ratio=387.8,
    chunks=24,
    seconds={"read": 0.12, "encode": 0.345},
)


class FakeClient:
    """Answers as a daemon would, and notes what it was asked."""

    def __init__(self):
        self.socket = None
        self.asked = {}
        self.failure = None

    def __call__(self, socket, **_options):
        self.socket = Path(socket)
        return self

    def _answer(self, value):
        if self.failure is not None:
            raise self.failure
        return value

    def streams(self):
        return self._answer([FOLLOWING, WAITING])

    def peers(self):
        return self._answer([PEER, AWAY])

    def node(self):
        return self._answer(
            NodeStatus(node="ab" * 32, site="us/a", certificate_ends_at=2e9, problems=["clock is slow"])
        )

    def versions(self, stream):
        return self._answer([VERSION] if stream == "qwen" else [])

    def publish(self, directory, *, progress, **options):
        self.asked = {"directory": directory, **options}
        for stage in ("read", "encode"):
            for done in (0, 50, 100):
                progress(PublishProgress(stage=stage, done_bytes=done, total_bytes=100))
        return self._answer(RESULT)

    def pull(self, stream, out, *, progress, **options):
        self.asked = {"stream": stream, "out": out, **options}
        progress(50, 100)
        return self._answer(VERSION)

    def verify(self, stream, *, repair):
        self.asked = {"stream": stream, "repair": repair}
        return self._answer([SlotCheck(path="/slots/qwen/v7", epoch=0, version=7, twin=False, blocks=3, bad=0, left=0)])
