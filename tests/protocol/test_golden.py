"""The fixed formats are fixed: what was written once is written and read alike for ever."""

from typing import get_args

import pytest
from golden.protocol_examples import CA, EXAMPLES, FOLDER, HEADER, MIRROR, PUBLISHER, STREAM

from patchswarm.protocol import join, manifest
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import BlobRef
from patchswarm.protocol.messages import Message, ObjectKind
from patchswarm.protocol.mirror import open_list
from patchswarm.protocol.seal import open_blob
from patchswarm.protocol.signed import sign


def frozen(name):
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_encodes_to_its_frozen_bytes(name):
    example = EXAMPLES[name]
    assert example.encode(example.value) == frozen(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_frozen_bytes_decode_to_the_example(name):
    assert EXAMPLES[name].decode(frozen(name)) == EXAMPLES[name].value


def test_every_message_and_every_signed_object_has_an_example():
    shown = {type(example.value) for example in EXAMPLES.values()}
    assert shown >= {*get_args(Message), *get_args(join.JoinMessage), join.Token}
    names = [*vars(manifest).values(), *vars(join).values()]
    assert shown >= {each for each in names if isinstance(each, type) and hasattr(each, "domain")}


def test_no_frozen_file_is_left_without_its_example():
    assert {path.stem for path in FOLDER.glob("*.hex")} == {*EXAMPLES, "blob", "mirror-list"}


def test_a_frozen_list_still_opens():
    """Only read: a newer zstd may pack the same list into other bytes, which is as good."""
    sealed = frozen("blob")
    data = EXAMPLES["layout"].encode(EXAMPLES["layout"].value)
    ref = BlobRef(digest(data), len(data), bytes(range(32)), ((digest(sealed), len(sealed)),))
    assert open_blob(ref, [sealed]) == data


def test_a_frozen_list_of_a_mirror_still_opens():
    """Only read, for the same reason."""
    objects = [(ObjectKind.STREAM, sign(STREAM, CA)), (ObjectKind.HEADER, sign(HEADER, PUBLISHER))]
    assert open_list(frozen("mirror-list"), MIRROR) == objects
