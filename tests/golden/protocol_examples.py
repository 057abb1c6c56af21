"""One example of every protocol format, built from fixed inputs; its frozen bytes lie in golden/protocol/.

A format that changes by accident changes these bytes, and the test names it. One that changes on purpose gets a new
domain, magic or version number and a new file: the old one stays, because nodes in the field still write it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from patchswarm.protocol import join
from patchswarm.protocol.elements import Kind
from patchswarm.protocol.framing import FrameDecoder, encode_frame
from patchswarm.protocol.ids import digest
from patchswarm.protocol.lane import HEADER_BYTES, LaneCodec, encode_preamble, preamble_lane
from patchswarm.protocol.layout import File, Layout, Region, Role, decode_layout
from patchswarm.protocol.manifest import (
    Beacon,
    BlobRef,
    Head,
    Header,
    IndexPage,
    IssuedMembership,
    Issuer,
    Manifest,
    ManifestPart,
    Membership,
    MirrorRecord,
    NodeRecord,
    Opening,
    OpeningPart,
    Revocation,
    RosterSite,
    Route,
    StreamRecord,
    Subject,
    Transition,
    TransitionPart,
)
from patchswarm.protocol.messages import (
    BlockPiece,
    BlockReject,
    BlockRequest,
    Buckets,
    Bye,
    Cancel,
    Claim,
    Have,
    Headers,
    Hello,
    Inventory,
    Lane,
    Lossy,
    Message,
    Object,
    ObjectKind,
    Page,
    Piece,
    Ping,
    Pong,
    Pull,
    Reason,
    Reject,
    Renew,
    Renewed,
    Request,
    Summary,
    Widen,
    decode_message,
    encode_message,
)
from patchswarm.protocol.seal import INDEX_ENTRY, ChunkSealer, index_entries
from patchswarm.protocol.signed import sign, verify

FOLDER = Path(__file__).parent / "protocol"

CA = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
PUBLISHER = Ed25519PrivateKey.from_private_bytes(bytes([2] * 32))
NODE = Ed25519PrivateKey.from_private_bytes(bytes([3] * 32))
ISSUER_KEY = Ed25519PrivateKey.from_private_bytes(bytes([4] * 32))
ATTEMPT = bytes(range(16))
CHUNK_KEY = bytes(range(32))
CONTENTS = b"contents of one chunk"


class Example(NamedTuple):
    """A value, its encoding and what reads it back."""

    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def public(key: Ed25519PrivateKey) -> bytes:
    """Raw 32-byte public key."""
    return key.public_key().public_bytes_raw()


def signed(value: Any, key: Ed25519PrivateKey) -> Example:
    """Example of a signed object."""
    return Example(value, lambda each: sign(each, key), lambda data: verify(data, type(value), public(key)))


def message(value: Message) -> Example:
    """Example of a message, in its frame."""
    return Example(
        value,
        lambda each: encode_frame(encode_message(each)),
        lambda data: decode_message(*FrameDecoder().feed(data)),
    )


def joining(value: join.JoinMessage) -> Example:
    """Example of a message of the joining exchange, in its frame."""
    return Example(
        value,
        lambda each: encode_frame(join.encode_join(each)),
        lambda data: join.decode_join(*FrameDecoder().feed(data)),
    )


def lane_headers(chunks: list[tuple[bytes, int]]) -> bytes:
    """What the dialler of a lane sends before each of these chunks."""
    codec = LaneCodec(CHUNK_KEY, dialler=True)
    return b"".join(codec.header(name, size) for name, size in chunks)


def read_lane_headers(data: bytes) -> list[tuple[bytes, int]]:
    """The chunks that the acceptor of a lane is told of."""
    codec = LaneCodec(CHUNK_KEY, dialler=False)
    return [codec.open_header(data[at : at + HEADER_BYTES]) for at in range(0, len(data), HEADER_BYTES)]


def named(text: str) -> bytes:
    """A digest that can be told apart in a dump."""
    return digest(text.encode())


LAYOUT = Layout(
    (
        File("config.json", (Region(Role.BLOB, Kind.BYTES, 612),)),
        File("empty", ()),
        File(
            "shards/model.safetensors",
            (
                Region(Role.HEADER, Kind.BYTES, 168),
                Region(Role.TENSOR, Kind.BF16, 1536, "layer.weight", "BF16", (2, 384)),
                Region(Role.TENSOR, Kind.F32, 4, "scale", "F32", ()),
                Region(Role.TENSOR, Kind.BYTES, 0, "none", "F6_E2M3", (0, 4)),
                Region(Role.GAP, Kind.BYTES, 5),
            ),
        ),
    )
)
LAYOUT_BLOB = BlobRef(LAYOUT.root(), len(LAYOUT.encode()), CHUNK_KEY, ((named("layout chunk"), 170),))
DIGESTS_BLOB = BlobRef(named("digests"), 64, CHUNK_KEY[::-1], ((named("digest chunk"), 90),))
INDEX = INDEX_ENTRY.pack(named("chunk 0"), 37) + INDEX_ENTRY.pack(named("chunk 1"), 1_048_592)
INDEX_BLOB = BlobRef(digest(INDEX), len(INDEX), bytes(32), ((named("index chunk"), 100),))

STREAM = StreamRecord("qwen3-8b-run17", 1, public(PUBLISHER))
MEMBERSHIP = Membership(public(NODE), 1_900_000_000)
ISSUER = Issuer(public(ISSUER_KEY), 1_950_000_000)
ISSUED_MEMBERSHIP = IssuedMembership(public(NODE), 1_900_000_000, sign(ISSUER, CA))
BEACON = Beacon("qwen3-8b-run17", 1, 42, named("manifest 42"), 1_800_000_000)
REVOCATION = Revocation(digest(public(NODE)), 1_800_000_000, b"")
OPENING = Opening(
    stream="qwen3-8b-run17",
    epoch=1,
    version=42,
    source=named("manifest 41"),
    attempt=ATTEMPT,
    size=LAYOUT.size,
    parts=(OpeningPart(node=public(NODE), key=CHUNK_KEY, first=0, layout=LAYOUT_BLOB),),
    roster=(RosterSite("eu-west/b", 1000, (named("node b"), named("node c"))), RosterSite("", 0, ())),
)
MANIFEST = Manifest(
    stream="qwen3-8b-run17",
    epoch=1,
    version=42,
    parent=named("manifest 41"),
    attempt=ATTEMPT,
    label="step 4200",
    size=LAYOUT.size,
    parts=(ManifestPart(layout=LAYOUT.root(), digests=named("digests")),),
)
TRANSITION = Transition(
    stream="qwen3-8b-run17",
    epoch=1,
    version=42,
    kind=Route.STEP,
    source=named("manifest 41"),
    target=named("manifest 42"),
    attempt=ATTEMPT,
    parts=(
        TransitionPart(
            node=public(NODE),
            key=CHUNK_KEY,
            first=0,
            count=2,
            size=1_048_629,
            layout=LAYOUT_BLOB,
            digests=DIGESTS_BLOB,
            index=INDEX_BLOB,
        ),
    ),
)
HEADER = Header(Subject.MANIFEST, "qwen3-8b-run17", 1, 42, named("manifest 42"))
RECORD = NodeRecord(
    node_key=public(NODE),
    incarnation=ATTEMPT[::-1],
    serial=7,
    site="us-east/a",
    addresses=("192.0.2.1:7700", "[2001:db8::1]:7700"),
    heads=(Head("qwen3-8b-run17", 1, 42, named("manifest 42")),),
    membership=sign(MEMBERSHIP, CA),
)
MIRROR = MirrorRecord("qwen3-8b-run17", 1, 2, ATTEMPT, CHUNK_KEY)
POSSESSION = join.Possession(bytes(32), named("authority"), public(CA), bytes(8), public(NODE))
TOKEN = join.Token(named("authority"), public(CA), bytes(range(8)), CHUNK_KEY, ("192.0.2.1:7700",))
PAGE = IndexPage("qwen3-8b-run17", ATTEMPT, 0, 0, INDEX)

EXAMPLES: dict[str, Example] = {
    "frame": Example([b"hello", b"!"], lambda each: b"".join(map(encode_frame, each)), FrameDecoder().feed),
    "layout": Example(LAYOUT, Layout.encode, decode_layout),
    "index": Example(
        [(named("chunk 0"), 37), (named("chunk 1"), 1_048_592)],
        lambda each: b"".join(INDEX_ENTRY.pack(*entry) for entry in each),
        index_entries,
    ),
    "chunk-sealed": Example(
        CONTENTS,
        lambda each: ChunkSealer(OPENING, 0).seal(5, each),
        lambda data: ChunkSealer(TRANSITION, 0).open(5, data),
    ),
    "signed-stream": signed(STREAM, CA),
    "signed-membership": signed(MEMBERSHIP, CA),
    "signed-issuer": signed(ISSUER, CA),
    "signed-issued-membership": signed(ISSUED_MEMBERSHIP, ISSUER_KEY),
    "signed-beacon": signed(BEACON, PUBLISHER),
    "signed-revocation": signed(REVOCATION, CA),
    "signed-node": signed(RECORD, NODE),
    "signed-opening": signed(OPENING, PUBLISHER),
    "signed-page": signed(PAGE, PUBLISHER),
    "signed-manifest": signed(MANIFEST, PUBLISHER),
    "signed-transition": signed(TRANSITION, PUBLISHER),
    "signed-header": signed(HEADER, PUBLISHER),
    "signed-mirror": signed(MIRROR, PUBLISHER),
    "signed-possession": signed(POSSESSION, NODE),
    "lane-preamble": Example(ATTEMPT, lambda each: encode_preamble(each, CHUNK_KEY), preamble_lane),
    "lane-headers": Example([(named("chunk 0"), 37), (named("chunk 1"), 1_048_592)], lane_headers, read_lane_headers),
    "token": Example(
        TOKEN, lambda each: join.encode_token(each).encode(), lambda data: join.decode_token(data.decode())
    ),
    "join-authority": joining(join.Authority(b"a certificate, DER", bytes(32))),
    "join-enrol": joining(join.Enrol(bytes(range(8)), CHUNK_KEY, sign(POSSESSION, NODE))),
    "join-welcome": joining(join.Welcome(b"a certificate, DER", sign(MEMBERSHIP, CA), ("192.0.2.1:7700",))),
    "join-introduction": joining(join.Introduction(ObjectKind.STREAM, sign(STREAM, CA))),
    "join-refusal": joining(join.Refusal(join.Reason.EXPIRED)),
    "message-hello": message(Hello(1, sign(RECORD, NODE))),
    "message-ping": message(Ping(1_234_567)),
    "message-pong": message(Pong(1_234_567)),
    "message-bye": message(Bye("stopping")),
    "message-lane": message(Lane(ATTEMPT, CHUNK_KEY)),
    "message-widen": message(Widen()),
    "message-lossy": message(Lossy()),
    "message-renew": message(Renew()),
    "message-renewed": message(Renewed(b"certificate in DER", sign(MEMBERSHIP, CA))),
    "message-summary": message(Summary(named("all"))),
    "message-buckets": message(Buckets(bytes(255 * 8) + named("bucket")[:8])),
    "message-inventory": message(Inventory(255, (named("a"), named("b")))),
    "message-headers": message(Headers((sign(HEADER, PUBLISHER),))),
    "message-pull": message(Pull((named("a"), named("b")))),
    "message-object": message(Object(ObjectKind.MANIFEST, sign(MANIFEST, PUBLISHER))),
    "message-page": message(Page(sign(PAGE, PUBLISHER))),
    "message-have": message(Have(ATTEMPT, ((0, 0), (2, 300), (2**31, 2**31 + 2)))),
    "message-request": message(Request(9, named("chunk 0"))),
    "message-reject": message(Reject(9, Reason.BUSY, (named("node b"),))),
    "message-cancel": message(Cancel(9)),
    "message-piece": message(Piece(9, 32, 37, b"piece")),
    "message-claim": message(Claim(ATTEMPT, 2, ((4, 7),))),
    "message-block-request": message(BlockRequest(9, digest(b"manifest"), 1234)),
    "message-block-reject": message(BlockReject(9, Reason.MISSING)),
    "message-block-piece": message(BlockPiece(9, 48, 4096, b"piece")),
}
