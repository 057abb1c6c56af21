"""Writes the frozen bytes of formats that have none yet: `python tests/golden/freeze.py`. Never overwrites.

Bytes that differ from a frozen file are not a reason to delete the file but a format change; see docs/formats.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import protocol_examples, storage_examples


def to_text(data: bytes) -> str:
    """Hex, 32 bytes a line, so that a change can be read in a diff."""
    return "".join(data[at : at + 32].hex() + "\n" for at in range(0, len(data), 32))


def main() -> None:
    for floor in (protocol_examples, storage_examples):
        floor.FOLDER.mkdir(exist_ok=True)
        for name, example in floor.EXAMPLES.items():
            path = floor.FOLDER / f"{name}.hex"
            if not path.exists():
                path.write_text(to_text(example.encode(example.value)))
                print(f"froze {path}")


if __name__ == "__main__":
    main()
