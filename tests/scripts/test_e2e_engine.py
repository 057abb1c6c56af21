"""`scripts/e2e_engine` from end to end, where torch is: elsewhere the script makes an environment of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "lib" / "e2e_engine.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_engines_say_what_the_trainers_weights_say(tmp_path):
    for name in ("torch", "transformers", "openai"):
        pytest.importorskip(name, reason=f"{name} is not installed: scripts/e2e_engine brings it")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--steps", "2", "--json", report], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compared = json.loads(report.read_text())["compared"]
    assert {(each["where"], each["route"]) for each in compared} >= {("in place", "generate"), ("us-east", "chat")}
