"""docs/formats.md names every message and signed object as the code has them, with every field, in order."""

import re
from pathlib import Path
from typing import get_args

import pytest
from golden.protocol_examples import EXAMPLES

from patchswarm.protocol import join, manifest
from patchswarm.protocol.messages import Message

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
MESSAGES = [*get_args(Message), *get_args(join.JoinMessage)]
OBJECTS = [
    each
    for each in (*vars(manifest).values(), *vars(join).values())
    if isinstance(each, type) and hasattr(each, "domain")
]


def in_order(names, text):
    """Whether all names stand in the text, as words, in this order."""
    return re.search(r".*".join(rf"\b{re.escape(name)}\b" for name in names), text, re.DOTALL) is not None


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_stands_in_its_table(kind):
    tag = kind.__struct_config__.tag
    row = re.search(rf"^\| {tag} \| {kind.__name__} \|.*$", PAGE, re.MULTILINE)
    assert row is not None, f"no row for {kind.__name__} with tag {tag}"
    assert in_order(kind.__struct_fields__, row[0]), row[0]


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_a_signed_object_stands_there_with_its_domain(kind):
    domain = kind.domain.decode().replace("\0", "\\0")
    around = re.search(rf"^.*`{re.escape(domain)}`.*$\n?.*", PAGE, re.MULTILINE)
    assert around is not None, f"{domain} of {kind.__name__} is missing"
    assert in_order(kind.__struct_fields__, around[0]), around[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_frozen_example_is_mentioned(name):
    patterns = re.findall(r"`([a-z*-]+)`", PAGE)
    assert any(re.fullmatch(pattern.replace("*", ".*"), name) for pattern in patterns)
