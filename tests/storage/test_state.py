"""A slot's state file says what the directory holds, or that it cannot be trusted."""

from pathlib import Path

import msgspec
import pytest
from golden.storage_examples import EXAMPLES, FOLDER
from hypothesis import given
from hypothesis import strategies as st
from support.structs import instances

from patchswarm.storage.errors import HomeError, SlotStateError
from patchswarm.storage.state import SlotState, decode_state, encode_state

STATE = EXAMPLES["slot-state"].value
DATA = encode_state(STATE)
PATH = Path("slots/qwen/v1/.patchswarm-slot")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_disk_format_is_written_and_read_as_it_was_frozen(name):
    frozen = bytes.fromhex((FOLDER / f"{name}.hex").read_text())
    assert EXAMPLES[name].encode(EXAMPLES[name].value) == frozen
    assert EXAMPLES[name].decode(frozen) == EXAMPLES[name].value


@given(instances(SlotState))
def test_every_state_comes_back(state):
    assert decode_state(encode_state(state), PATH) == state


@pytest.mark.parametrize("end", range(len(DATA)))
def test_a_state_file_torn_anywhere_is_not_trusted(end):
    with pytest.raises(SlotStateError, match="patchswarm-slot"):
        decode_state(DATA[:end], PATH)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_flipped_bit_anywhere_is_not_trusted(at, flip):
    damaged = bytearray(DATA)
    damaged[at] ^= flip
    with pytest.raises((SlotStateError, HomeError)):
        decode_state(bytes(damaged), PATH)


def test_a_later_format_is_refused_with_advice():
    with pytest.raises(HomeError, match=r"format 2.*upgrade"):
        decode_state(DATA[:6] + b"\x02" + DATA[7:], PATH)


def test_a_longer_state_of_a_later_release_is_still_read():
    class Longer(SlotState, frozen=True, array_like=True):
        more: int = 7

    longer = msgspec.convert([*msgspec.to_builtins(STATE, builtin_types=(bytes,)), 7], Longer)
    assert decode_state(encode_state(longer), PATH) == STATE
