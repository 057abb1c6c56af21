"""The command line: what it prints, what it writes, and what it refuses."""

import json

import pytest
from simulator.command import main

SMALL = ["--sites", "2", "--nodes", "4", "--patch", "2MB", "--chunks", "8"]


def test_a_run_prints_its_figures_and_writes_them(tmp_path, capsys):
    assert main([*SMALL, "--json", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    for word in ("time to", "lower bound", "ratio per host", "copies in", "duplicates", "control", "head known"):
        assert word in printed
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["complete"] == found["expected"] == 3
    assert found["ratio"]["max"] >= found["ratio"]["p50"] >= 1.0


@pytest.mark.parametrize("policy", ["star", "tree", "rarest"])
def test_baselines_run_in_the_same_world(policy, capsys):
    assert main([*SMALL, "--baseline", policy]) == 0
    assert f"{policy}: 4 hosts at 2 sites" in capsys.readouterr().out


def test_the_star_sends_a_copy_to_every_host(tmp_path):
    assert main([*SMALL, "--baseline", "star", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["seed_copies_out"] == pytest.approx(2.0, rel=0.01)


def test_the_labs_first_case_comes_near_the_links(tmp_path):
    assert main(["--lab", "T1", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert 1.0 < found["to_all_s"] / (64 * 2**20 * 8 / 100e6) < 1.45
    assert found["seed_copies_out"] < 1.05
    assert found["copies_in"]["max"] < 1.05


def test_the_labs_case_with_loss_begins_with_cubic(tmp_path):
    """The lab takes 7.7 to 8.4 s; with BBR from the start it would be 6.7 s."""
    assert main(["--lab", "T2", "--json", str(tmp_path / "found.json")]) == 0
    assert 7.5 < json.loads((tmp_path / "found.json").read_text())["to_all_s"] < 8.9


@pytest.mark.parametrize(
    "words",
    [["--churn", "20"], ["--patch", "huge"], ["--sites", "5", "--nodes", "4"], ["--sites", "0"], ["--lab", "T9"]],
)
def test_bad_words_are_refused_in_one_line(words, capsys):
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2
    assert "simulate: error:" in capsys.readouterr().err
