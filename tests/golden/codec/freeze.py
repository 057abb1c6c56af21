"""Writes the golden chunks again: only after a change of the format's version, for frozen bytes are read for ever.

python tests/golden/codec/freeze.py
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.codec import changed_copy, random_bytes

from patchswarm.protocol.codec import dense, record
from patchswarm.protocol.codec.chunk import CodecOptions, Span, encode_spans
from patchswarm.protocol.codec.order import order_of
from patchswarm.protocol.codec.pieces import elements_of
from patchswarm.protocol.elements import Kind, width_bytes


def dense_chunk(kind: Kind, old: np.ndarray, new: np.ndarray, name: str) -> bytes:
    """A chunk of one dense record of the given type."""
    order = order_of(kind)
    before, after = elements_of(old, order), elements_of(new, order)
    head = bytes((getattr(record, name), kind))
    head += record.write_segments([record.Segment(0, 0, new.size)], width_bytes(kind))
    check = record.check_of(after).to_bytes(4, "little")
    if name == "RAW":
        body = check + new.tobytes()
    elif name == "VALUES":
        body = check + b"".join(dense.write_planes(dense.value_planes(after, kind, order), record.ZSTD, 1))
    else:
        body = record.check_of(before).to_bytes(4, "little") + check
        body += b"".join(dense.write_planes(dense.step_planes(before, after, order), record.LZ4, 0))
    return record.write_header([]) + head + body


def main() -> None:
    """One file per kind."""
    for kind in Kind:
        old = random_bytes(kind, 600, seed=kind)
        new = changed_copy(kind, old, 0.08, seed=kind + 100)
        (chunk,) = encode_spans([Span(0, kind, 0, old, new)], CodecOptions(), 1 << 20)
        chunks = {"SPARSE": chunk.data}
        for name in ("STEPS", "VALUES", "RAW"):
            chunks[name] = dense_chunk(kind, old, new, name)
        cases = [
            {"record": name, **{k: base64.b64encode(v).decode() for k, v in
                                (("old", old.tobytes()), ("new", new.tobytes()), ("chunk", data))}}
            for name, data in chunks.items()
        ]  # fmt: skip
        (Path(__file__).parent / f"{kind.name}.json").write_text(json.dumps(cases, indent=0) + "\n")


if __name__ == "__main__":
    main()
