"""Wrote the frozen delta folders, with the encoder of tests/support that follows slime's documentation.

    python tests/golden/slime/freeze.py

It never overwrites: what is frozen is read for ever.
"""

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts/lib"), str(ROOT / ".tooling"), str(ROOT)]

from support.slime_fleet import Trainer  # noqa: E402

from tests.daemon.local.slime.test_golden import EXAMPLES, GOLDEN, tensors  # noqa: E402


def main() -> None:
    """Write the examples that are not there yet."""
    for encoding, checksum in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            plain = [{name: each.data.tobytes() for name, each in tensors(version).items()} for version in (0, 1)]
            trainer = Trainer(Path(folder), plain[0], encoding=encoding, checksum=checksum, ranks=1)
            delta = trainer.publish(plain[1])
            index = json.loads((delta / "model.safetensors.index.json").read_text())
            files = {path.name: path.read_bytes().hex() for path in sorted(delta.glob("*.safetensors"))}
        with (GOLDEN / f"{encoding}-{checksum}.json").open("x") as file:
            json.dump({"index": index, "files": files}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
