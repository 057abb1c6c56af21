"""One example of every disk format of the storage floor; its frozen bytes lie in golden/storage/."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from patchswarm.protocol.ids import digest
from patchswarm.protocol.packing import unpack
from patchswarm.storage.journal import WHOLE, Touched, encode_entry
from patchswarm.storage.signed_log import FORGOTTEN, SETTING, Entry, decode_log, encode_log
from patchswarm.storage.slot_dir import Marker, decode_marker, encode_marker
from patchswarm.storage.state import Phase, SlotState, decode_state, encode_state

FOLDER = Path(__file__).parent / "storage"


class Example(NamedTuple):
    """A value, how it is written, and how it is read back."""

    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


_STATE = SlotState(
    phase=Phase.READY,
    stream="qwen3-8b",
    epoch=1,
    version=17,
    manifest=digest(b"manifest"),
    label="step 340",
    layout=digest(b"layout"),
    boot=bytes(range(16)),
    proven=True,
    withdrawn=False,
)

_ENTRY = [
    Touched("model-00001.safetensors", 4096, 200, b"as compressed"),
    Touched("config.json", 0, WHOLE),
]

_LOG = [
    Entry(3, digest(b"object"), b"signed bytes"),
    Entry(FORGOTTEN, digest(b"older object")),
    Entry(SETTING, b"base/ab12", b"/models/base"),
]

EXAMPLES = {
    "signed-log": Example(_LOG, encode_log, decode_log),
    "slot-state": Example(_STATE, encode_state, lambda data: decode_state(data, Path("state"))),
    "journal-entry": Example(_ENTRY, encode_entry, lambda data: unpack(data[8:], list[Touched])),
    "slot-marker": Example(
        Marker(bytes(16), bytes(range(16))), encode_marker, lambda data: decode_marker(data, Path("marker"))
    ),
}
