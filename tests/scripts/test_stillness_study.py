"""What the stillness study looks at, without torch: views, the model of rounding boundaries, tables and pictures."""

import json
import math

import codec_data
import numpy as np
import pytest
import stillness_measure as measure
import stillness_study as study
from hypothesis import given
from hypothesis import strategies as st


def weights(shape=(256, 384), seed=0, spread=0.03):
    return np.random.default_rng(seed).normal(0, spread, shape).astype(np.float32)


def moved(values, size, seed=1):
    return values + np.random.default_rng(seed).normal(0, size, values.shape).astype(np.float32)


def decode_e4m3(bits):
    """OCP OFP8: 4 bits of exponent with bias 7, 3 of mantissa, no infinities."""
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -value if bits & 128 else value


E4M3 = {bits: decode_e4m3(bits) for bits in range(256) if bits & 127 != 127}


@given(st.lists(st.floats(-448, 448, width=32), min_size=1, max_size=50))
def test_e4m3_is_the_nearest_value_and_of_two_the_even_one(values):
    for value, bits in zip(values, codec_data.to_e4m3(np.array(values, np.float32)).tolist(), strict=True):
        best = min(abs(value - each) for each in E4M3.values())
        assert abs(value - E4M3[bits]) == best
        assert math.copysign(1, E4M3[bits]) == math.copysign(1, value)
        nearest = {abs(each) for each in E4M3.values() if abs(value - each) == best}
        assert len(nearest) == 1 or bits % 2 == 0


def test_fp8_blocks_use_the_whole_range_each():
    values = weights((200, 300))
    values[128:, 256:] *= 1000
    kind, data = codec_data.view({"w": values}, "F8_E4M3")["w"]
    assert kind.name == "F8_E4M3"
    bits = data.reshape(200, 300)
    for rows in (slice(0, 128), slice(128, 200)):
        for columns in (slice(0, 128), slice(128, 256), slice(256, 300)):
            assert max(abs(E4M3[each]) for each in np.unique(bits[rows, columns]).tolist()) == 448


@pytest.mark.parametrize("form", measure.FORMS)
@pytest.mark.parametrize("size", [1e-7, 1e-5, 1e-3])
def test_the_model_of_rounding_boundaries_foretells_what_changes(form, size):
    before = weights((512, 768))
    after = moved(before, size)
    served = measure.served(
        codec_data.view({"w": before}, form), codec_data.view({"w": after}, form), lambda _name: True
    )
    expected = measure.predict([(before, after)], form).share
    counted = expected * served.elements
    # Scales that move with their largest weight are not in the model, and matter for FP8 and INT4.
    slack = 0.02 if form == "BF16" else 0.25
    assert abs(served.changed - counted) < 5 * counted**0.5 + slack * counted + 3


def test_updates_that_know_the_spacing_are_told_from_those_that_do_not():
    before = weights()
    blind = moved(before, 1e-6)
    relative = (before * np.float32(1 + 1e-5)).astype(np.float32)
    assert measure.predict([(before, blind)], "BF16").together == pytest.approx(1, abs=0.02)
    assert measure.predict([(before, relative)], "BF16").together < 0.7


def test_an_update_is_told_by_its_size_and_shape():
    before = weights()
    gaussian = measure.update_of([(before, moved(before, 1e-3))])
    equal = measure.update_of([(before, before + np.float32(0.001))])
    assert gaussian.rms == pytest.approx(1e-3, rel=0.02)
    assert gaussian.weight_rms == pytest.approx(0.03, rel=0.02)
    assert gaussian.shape == pytest.approx(math.sqrt(2 / math.pi), rel=0.01)
    assert equal.shape == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("form", measure.FORMS)
def test_scales_count_in_sizes_and_not_in_shares(form):
    before = {"encoder.w": weights(), "norm": weights((384,))}
    after = {name: moved(values, 1e-4) for name, values in before.items()}
    old, new = codec_data.view(before, form), codec_data.view(after, form)
    hidden = measure.served(old, new, lambda name: name == "encoder.w")
    everything = measure.served(old, new, lambda _name: True)
    assert (hidden.elements, everything.elements) == (256 * 384, 256 * 384 + 384)
    assert hidden.scales == {"BF16": 0, "F8_E4M3": 6, "INT4": 256 * 384 // 32}[form]
    assert everything.full_bytes == sum(data.size for _, data in new.values())
    assert 0 < hidden.bound_bytes < hidden.patch_bytes < everything.patch_bytes < everything.full_bytes
    same = measure.served(old, old, lambda _name: True)
    assert (same.changed, same.scales_changed, same.patch_bytes) == (0, 0, 0)


def test_an_update_can_be_looked_at_as_if_it_were_larger_or_smaller():
    before = weights((512, 768))
    after, twice = moved(before, 1e-6), moved(before, 2e-6)
    rms = measure.update_of([(before, after)]).rms
    scaled = study.at_rms([(before, after)], rms, 2 * rms)
    real = study.at_rms([(before, twice)], rms, rms)
    assert scaled["BF16"] == pytest.approx(real["BF16"], rel=0.05)
    assert study.at_rms([(before, after)], rms, 0.0) == dict.fromkeys(measure.FORMS, 0.0)


@pytest.fixture
def runs(monkeypatch):
    """A run of each optimizer over a model of one hidden matrix, trained by chance."""

    def train(rate, steps, *, optimizers):
        state = {"encoder.0.weight": weights(), "embeddings.weight": weights(seed=3), "norm.bias": weights((384,))}
        yield codec_data.State(state, math.nan)
        for step in range(steps):
            state = {name: moved(values, rate, seed=step) for name, values in state.items()}
            yield codec_data.State(state, 1 / (1 + step))

    monkeypatch.setattr(codec_data, "train", train)
    return [study.run(name, rate, (1, 2, 4)) for rate in (1e-6, 1e-4) for name in study.OPTIMIZERS]


def test_the_steps_asked_for_are_looked_at(runs):
    for run in runs:
        assert [step.number for step in run.steps] == [1, 2, 4]
        assert [step.loss for step in run.steps] == [1, 1 / 2, 1 / 4]
        assert all(step.update.rms == pytest.approx(run.rate, rel=0.05) for step in run.steps)
        assert all(step.hidden["BF16"].elements == 256 * 384 for step in run.steps)
        assert run.settled == run.steps[1:]
        assert run.matched["BF16"] < run.share("BF16")  # matched is at a fifth of the rate, these moved by all of it


def test_every_run_has_a_row_in_every_table(runs, capsys):
    study.report(runs)
    printed = capsys.readouterr().out
    for form in study.FORMS:
        table = printed.split(f"\n{form}:")[1].split("\n\n")[0].splitlines()
        assert [row.split()[0] for row in table[2:]] == ["AdamW", "Muon", "AdamW", "Muon"]
        assert len({len(row) for row in table[1:]}) == 1  # columns stand below each other


def test_everything_is_told_as_json_and_drawn(runs, tmp_path):
    told = json.loads(json.dumps(study.document(runs)))
    assert told[0]["steps"][2]["hidden"]["BF16"]["changed"] == runs[0].steps[2].hidden["BF16"].changed
    study.draw(tmp_path / "study.svg", runs)
    assert (tmp_path / "study.svg").read_text().startswith("<?xml")


def test_a_wrong_command_line_is_said_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    missing = str(tmp_path / "missing" / "x.json")
    for arguments, message in (
        (["--json", missing], "missing is not a directory: make it first"),
        (["--rates", "fast"], "invalid float value: 'fast'"),
    ):
        monkeypatch.setattr("sys.argv", ["stillness_study", *arguments])
        with pytest.raises(SystemExit) as raised:
            study.main()
        assert raised.value.code == 2
        assert message in capsys.readouterr().err
