"""A daemon that is killed again and again shows its reader no wrong byte, and comes to the newest version."""

import json
import os

import chaos_crash
import pytest


@pytest.mark.timeout(600)
def test_a_daemon_killed_twenty_times_serves_only_the_trainers_bytes(tmp_path):
    assert chaos_crash.main(["--kills", "20", "--seed", "20", "--json", str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out").read_text())
    assert report["kills"] == len(report["recoveries_s"]) == 20
    assert report["versions_read"] >= 2
    assert not report["mismatches"]


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs takes root")
def test_a_daemon_on_a_small_tmpfs_that_others_fill_goes_on_when_there_is_room(tmp_path):
    assert chaos_crash.main(["--kills", "4", "--seed", "4", "--small-tmpfs", "--json", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out").read_text())["times_full"] >= 1


def test_a_wrong_byte_fails_the_run():
    report = chaos_crash.Report(1, small_tmpfs=False, caught_up=True)
    assert report.passed
    report.mismatches.append("version 3 differs in model.safetensors")
    assert not report.passed
