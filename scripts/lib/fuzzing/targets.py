"""Targets: what is fed with bent input, and the errors by which each may refuse it. Anything else is a finding."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from patchswarm.protocol import manifest
from patchswarm.protocol.codec.chunk import CodecOptions, Span, apply_chunk, chunk_events, covered_ranges, encode_spans
from patchswarm.protocol.elements import Kind
from patchswarm.protocol.errors import CodecError, FrameError, LayoutError, MessageError, ProtocolError, SealError
from patchswarm.protocol.framing import FrameDecoder
from patchswarm.protocol.gossip import Gossip
from patchswarm.protocol.ids import digest
from patchswarm.protocol.join import decode_join, decode_token
from patchswarm.protocol.lane import HEADER_BYTES, LaneCodec, check_preamble, preamble_lane
from patchswarm.protocol.layout import decode_layout
from patchswarm.protocol.messages import (
    BlockPiece,
    Hello,
    Lane,
    Lossy,
    ObjectKind,
    Piece,
    Renew,
    Renewed,
    Widen,
    decode_message,
)
from patchswarm.protocol.seal import index_entries, open_blob
from patchswarm.protocol.signed import SIGNATURE_BYTES, Signable, sign
from patchswarm.protocol.swarm import Settings, Swarm
from patchswarm.storage.errors import NotACheckpointError
from patchswarm.storage.safetensors import file_regions, header_length

from .mutate import Mutator

SEEDS: Final = Path(__file__).resolve().parents[3] / "tests" / "golden" / "protocol"
CA, PUBLISHER, NODE, ISSUER = (Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (1, 2, 3, 4))
"""The keys of the frozen examples: what is bent is signed again, as a thief of the key would."""

SIGNED: Final[dict[str, tuple[ObjectKind, type[Signable], Ed25519PrivateKey]]] = {
    "signed-stream": (ObjectKind.STREAM, manifest.StreamRecord, CA),
    "signed-node": (ObjectKind.NODE, manifest.NodeRecord, NODE),
    "signed-revocation": (ObjectKind.REVOCATION, manifest.Revocation, CA),
    "signed-beacon": (ObjectKind.BEACON, manifest.Beacon, PUBLISHER),
    "signed-header": (ObjectKind.HEADER, manifest.Header, PUBLISHER),
    "signed-opening": (ObjectKind.OPENING, manifest.Opening, PUBLISHER),
    "signed-manifest": (ObjectKind.MANIFEST, manifest.Manifest, PUBLISHER),
    "signed-transition": (ObjectKind.TRANSITION, manifest.Transition, PUBLISHER),
    "signed-mirror": (ObjectKind.MIRROR, manifest.MirrorRecord, PUBLISHER),
}
OUTSIDE: Final = (Lane, Widen, Lossy, Renew, Renewed, Piece, BlockPiece)
"""Messages that the daemon takes before they reach the core."""

FRESH_EVERY: Final = 300
"""Cases after which a core that has learned much is replaced by a new one."""

Case = Callable[[], object]


@dataclass(frozen=True)
class Target:
    """`cases(mutator)` yields calls without end, each on one bent input; `allowed` is what they may raise."""

    name: str
    allowed: tuple[type[Exception], ...]
    cases: Callable[[Mutator], Iterator[Case]]


def seed(name: str) -> bytes:
    """The frozen example of this name."""
    return bytes.fromhex((SEEDS / f"{name}.hex").read_text())


def bodies(prefix: str) -> list[bytes]:
    """Bodies of the framed examples whose names begin so."""
    return [seed(path.stem)[4:] for path in sorted(SEEDS.glob(f"{prefix}*.hex"))]


def framing(mutator: Mutator) -> Iterator[Case]:
    """A stream of frames, bent, in pieces of any size."""
    stream = b"".join(seed(path.stem) for path in sorted(SEEDS.glob("message-*.hex")))
    while True:
        bad = mutator.bent(stream)
        cuts = sorted(mutator.chance.randrange(len(bad) + 1) for _ in range(5))

        def feed(bad: bytes = bad, cuts: list[int] = cuts) -> None:
            decoder = FrameDecoder()
            for first, last in zip([0, *cuts], [*cuts, len(bad)], strict=True):
                for body in decoder.feed(bad[first:last]):
                    decode_message(body)

        yield feed


def messages(mutator: Mutator) -> Iterator[Case]:
    """Messages of a member that has said hello, in any order, to a whole protocol core."""
    known = bodies("message-")
    while True:
        swarm, number = _core(mutator.chance.randrange(2**32))
        for step in range(FRESH_EVERY):
            body = mutator.packed(mutator.chance.choice(known))

            def hear(body: bytes = body, swarm: Swarm = swarm, number: int = number, now_s: float = step / 10) -> None:
                message = decode_message(body)
                if isinstance(message, OUTSIDE):
                    return
                try:
                    swarm.receive(number, message, now_s)
                finally:
                    swarm.tick(now_s)
                    swarm.effects()

            yield hear
            if number not in swarm.links:
                break


def _core(at: int) -> tuple[Swarm, int]:
    """A core that knows the frozen examples' stream and version, and its link to their node."""
    settings = Settings(ISSUER.public_key().public_bytes_raw(), _public(CA), "a", (), ("*",))
    swarm = Swarm(settings, lambda _: False, random.Random(at))  # noqa: S311
    own = manifest.NodeRecord(
        settings.node_key, bytes(16), 1, "a", (), (), sign(manifest.Membership(settings.node_key, 2**40), CA)
    )
    swarm.announce(sign(own, ISSUER), 0.0)
    for name in ("signed-stream", "signed-header", "signed-manifest", "signed-opening", "signed-transition"):
        swarm.publish(SIGNED[name][0], seed(name), 0.0)
    number = swarm.link_up(_public(NODE), None, 0.0)
    swarm.receive(number, Hello(1, seed("signed-node")), 0.0)
    swarm.effects()
    return swarm, number


def gossip(mutator: Mutator) -> Iterator[Case]:
    """Signed objects, bent and signed again with the right keys; headers come before what they announce."""
    while True:
        held = Gossip(_public(CA))
        held.learn(ObjectKind.STREAM, seed("signed-stream"))
        for _ in range(FRESH_EVERY):
            name = mutator.chance.choice(list(SIGNED))
            kind, struct, key = SIGNED[name]
            body = mutator.packed(seed(name)[SIGNATURE_BYTES:])
            data = key.sign(struct.domain + body) + body

            def learn(
                kind: ObjectKind = kind, struct: type[Signable] = struct, data: bytes = data, held: Gossip = held
            ) -> None:
                if kind in (ObjectKind.OPENING, ObjectKind.MANIFEST, ObjectKind.TRANSITION):
                    subject = manifest.Subject(kind - ObjectKind.OPENING)
                    name = digest(struct.domain + data[SIGNATURE_BYTES:])
                    header = manifest.Header(subject, "qwen3-8b-run17", 1, 42, name)
                    held.learn(ObjectKind.HEADER, sign(header, PUBLISHER))
                held.learn(kind, data)

            yield learn


def layout(mutator: Mutator) -> Iterator[Case]:
    """Encoded layouts."""
    good = seed("layout")
    while True:
        bad = mutator.packed(good)
        yield partial(decode_layout, bad)


def index(mutator: Mutator) -> Iterator[Case]:
    """Index entries."""
    good = seed("index") * 3
    while True:
        bad = mutator.bent(good)
        yield partial(index_entries, bad)


def lists(mutator: Mutator) -> Iterator[Case]:
    """Sealed lists whose compressed contents are bent, and references that lie about them."""
    plain = bytes(1000) + bytes(range(256)) * 40
    packed = zstandard.ZstdCompressor().compress(plain)
    root, key = digest(plain), bytes(32)
    while True:
        bad = mutator.bent(packed)
        piece = AESGCM(key).encrypt(bytes(12), bad, b"patchswarm blob 1\0" + root)
        size = mutator.chance.choice((len(plain), 0, 1, 2**20, 2**28, 2**63 - 1))
        ref = manifest.BlobRef(root, size, key, ((digest(piece), len(piece)),))
        yield partial(open_blob, ref, [piece])


def chunks(mutator: Mutator) -> Iterator[Case]:
    """Opened chunks of every kind of record, applied to regions in memory."""
    numbers = np.random.default_rng(1)
    kinds = (Kind.BF16, Kind.F8_E4M3, Kind.I4, Kind.F32)
    good: list[tuple[np.ndarray, bytes]] = []
    for kind in kinds:
        before = numbers.integers(0, 255, 48_000, dtype=np.uint8)
        for share in (0.01, 0.6):
            after = before.copy()
            after[numbers.random(before.size) < share] += 1
            span = Span(0, kind, 0, before, after)
            good += [(before, each.data) for each in encode_spans([span], CodecOptions(4), 1 << 20)]
        good += [
            (before, each.data) for each in encode_spans([Span(0, kind, 0, None, before)], CodecOptions(), 1 << 20)
        ]
    while True:
        before, data = mutator.chance.choice(good)
        bad = mutator.bent(data)
        target = before.copy()

        def resolve(region: int, offset: int, size: int, target: np.ndarray = target) -> np.ndarray:
            if region or offset + size > target.size:
                raise CodecError(f"region {region} has no bytes {offset} to {offset + size}")
            return target[offset : offset + size]

        yield partial(covered_ranges, bad)
        yield partial(chunk_events, bad, resolve)
        yield partial(apply_chunk, bad, resolve)


def lanes(mutator: Mutator) -> Iterator[Case]:
    """Preambles and headers of lanes."""
    key = bytes(range(32))
    preamble, headers = seed("lane-preamble"), seed("lane-headers")
    while True:
        bad = mutator.bent(preamble)
        yield partial(_dialled, bad, key)
        data = mutator.bent(headers[:HEADER_BYTES])
        yield partial(LaneCodec(key, dialler=False).open_header, data[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"))


def _dialled(preamble: bytes, key: bytes) -> None:
    preamble_lane(preamble)
    check_preamble(preamble, key)


def joining(mutator: Mutator) -> Iterator[Case]:
    """Messages of the join exchange, and tokens."""
    known, token = bodies("join-"), seed("token")
    while True:
        body = mutator.packed(mutator.chance.choice(known))
        yield partial(decode_join, body)
        text = mutator.bent(token).decode("latin-1")
        yield partial(decode_token, text)


def safetensors(mutator: Mutator) -> Iterator[Case]:
    """Files that are published: what a stranger's checkpoint can say in its header."""
    header = b'{"__metadata__":{"format":"pt"},"a.weight":{"dtype":"BF16","shape":[2,8],"data_offsets":[0,32]}}'
    good = len(header).to_bytes(8, "little") + header
    while True:
        bad = mutator.bent(good)

        def read(bad: bytes = bad) -> None:
            size = len(bad) + 32
            length = header_length(bad[:8], size, "x.safetensors")
            file_regions(bad[8 : 8 + length], size, "x.safetensors")

        yield read


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


TARGETS: Final = (
    Target("framing", (FrameError, MessageError), framing),
    Target("messages", (ProtocolError,), messages),
    Target("signed", (ProtocolError,), gossip),
    Target("layout", (LayoutError,), layout),
    Target("index", (SealError,), index),
    Target("lists", (SealError,), lists),
    Target("chunks", (CodecError,), chunks),
    Target("lanes", (FrameError,), lanes),
    Target("joining", (ProtocolError,), joining),
    Target("safetensors", (NotACheckpointError,), safetensors),
)
