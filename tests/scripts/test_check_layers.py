"""The layer check finds each kind of breach, and only that."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOUND = {
    "protocol/ids.py": "import struct\n",
    "protocol/codec/__init__.py": "",
    "protocol/codec/bits.py": "from ..ids import digest\n",
    "storage/files.py": "import os\nfrom ..protocol.codec import bits\n",
    "daemon/node.py": "from .fleet import peer\nfrom .local import api\nfrom .publisher import publish\n",
    "daemon/cli.py": "def main():\n    from .node import Node\n",
    "daemon/publisher.py": "from ..storage.files import write\nfrom .fleet.peer import Peer\n",
    "daemon/fleet/__init__.py": "",
    "daemon/fleet/peer.py": "import asyncio\nfrom ...protocol.ids import digest\n",
    "daemon/local/__init__.py": "",
    "daemon/local/api.py": "from ..publisher import publish\n",
}


def check(root, files):
    for path, text in {**SOUND, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts/check_layers", root], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_a_sound_house_passes(tmp_path):
    assert check(tmp_path, {}) == (0, [f"layers hold: {len(SOUND)} modules"])


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("protocol/ids.py", "from ..storage import files\n", "protocol/ids.py:1: imports upward: storage.files"),
        (
            "protocol/ids.py",
            "def late():\n    from ..storage.files import write\n",
            "protocol/ids.py:2: imports upward: storage.files",
        ),
        ("storage/files.py", "import patchswarm.daemon.node\n", "storage/files.py:1: imports upward: daemon.node"),
        ("protocol/ids.py", "import os.path\n", "protocol/ids.py:1: protocol/ touches the world: imports os"),
        ("protocol/ids.py", "from time import time\n", "protocol/ids.py:1: protocol/ touches the world: imports time"),
        ("protocol/ids.py", "\nopen('f')\n", "protocol/ids.py:2: protocol/ touches the world: calls open()"),
        (
            "protocol/ids.py",
            "import numpy as np\nnp.random.default_rng()\n",
            "protocol/ids.py:2: protocol/ has no randomness of its own: uses numpy.random",
        ),
        (
            "daemon/publisher.py",
            "from .node import Node\n",
            "daemon/publisher.py:1: imports daemon.node, which only assembles",
        ),
        (
            "daemon/local/api.py",
            "from ..fleet.peer import Peer\n",
            "daemon/local/api.py:1: knows both daemon/fleet and daemon/local",
        ),
    ],
)
def test_a_breach_is_named_with_its_place(tmp_path, path, text, complaint):
    returncode, lines = check(tmp_path, {path: text})
    assert returncode == 1
    assert any(line.startswith(complaint) for line in lines), lines


def test_an_import_circle_is_shown_as_its_path(tmp_path):
    returncode, lines = check(tmp_path, {"protocol/ids.py": "def late():\n    from .codec.bits import pack\n"})
    assert returncode == 1
    assert lines == ["import circle: protocol.ids -> protocol.codec.bits -> protocol.ids"]


def test_an_import_for_type_checkers_is_not_a_circle_and_touches_nothing(tmp_path):
    guarded = "if TYPE_CHECKING:\n    import random\n    from .codec.bits import Bits\n"
    assert check(tmp_path, {"protocol/ids.py": guarded})[0] == 0


def test_this_house_holds():
    done = subprocess.run([REPOSITORY / "scripts/check_layers"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
