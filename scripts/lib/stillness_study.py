"""Do served weights stay as still under Muon as under AdamW? Trains MiniLM with both and looks at what steps change.

The optimizers see the same batches. Muon takes the hidden matrices, with its update scaled to the RMS that AdamW's is
said to have (torch's `match_rms_adamw`: 0.2 x rate), and AdamW the rest, which is the usual recipe; so one rate means
about the same for both. Their real RMS differs all the same, so the last step is also looked at with its update scaled
to exactly that RMS: what then differs is the kind of update alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import codec_data
import numpy as np
import stillness_measure as measure
from stillness_measure import FORMS, Prediction, Served, Update, Weights

RATES = (1e-6, 1e-5, 1e-4, 1e-3)
LOOKS = (1, 2, 4, 8, 15, 16)  # steps that are looked at; the last two are averaged in the tables
QUICK_RATES = (1e-6, 1e-4)
QUICK_LOOKS = (1, 2, 4)
NOMINAL_RMS = 0.2  # of an update, over the rate
DECAY = 0.01  # AdamW's default in torch; the same for Muon, so that nothing else differs


@dataclass(frozen=True)
class Step:
    """One training step: its number, its loss, the update of the hidden matrices, and what it changed by form."""

    number: int
    loss: float
    update: Update
    hidden: dict[str, Served]
    rest: dict[str, Served]
    predicted: dict[str, Prediction]

    def patch_bytes(self, form: str) -> int:
        """Of the whole model."""
        return self.hidden[form].patch_bytes + self.rest[form].patch_bytes

    def full_bytes(self, form: str) -> int:
        """Of the whole model."""
        return self.hidden[form].full_bytes + self.rest[form].full_bytes

    def share(self, form: str) -> float:
        """Changed share of the whole model."""
        changed = self.hidden[form].changed + self.rest[form].changed
        return changed / (self.hidden[form].elements + self.rest[form].elements)


@dataclass(frozen=True)
class Run:
    """One optimizer at one rate."""

    optimizer: str
    rate: float
    steps: list[Step] = field(default_factory=list)
    matched: dict[str, float] = field(default_factory=dict)
    """Changed share of the hidden matrices by form, had the last update had an RMS of 0.2 x rate."""

    @property
    def settled(self) -> list[Step]:
        """The last two that were looked at: figures are means over them."""
        return self.steps[-2:]

    @property
    def rms(self) -> float:
        """RMS of the hidden matrices' updates."""
        return fmean(step.update.rms for step in self.settled)

    def share(self, form: str) -> float:
        """Changed share of the hidden matrices."""
        return fmean(step.hidden[form].share for step in self.settled)


def muon(weights: dict[str, Any], rate: float) -> list[Any]:
    """Torch's Muon for the hidden matrices, AdamW for all others."""
    import torch

    hidden = [value for name, value in weights.items() if measure.is_hidden(name, value)]
    others = [value for name, value in weights.items() if not measure.is_hidden(name, value)]
    return [
        torch.optim.Muon(hidden, lr=rate, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, weight_decay=DECAY),
    ]


OPTIMIZERS = {"AdamW": codec_data.adamw, "Muon": muon}
_LINES = {"AdamW": "-", "Muon": "--"}
_MARKERS = {"AdamW": "o", "Muon": "^"}


def run(optimizer: str, rate: float, looks: Sequence[int]) -> Run:
    """Train to the last of `looks`, and look at those steps."""
    done = Run(optimizer, rate)
    before: dict[str, np.ndarray] = {}
    for number, state in enumerate(codec_data.train(rate, looks[-1], optimizers=OPTIMIZERS[optimizer])):
        if number in looks:
            done.steps.append(look(number, state.loss, before, state.weights))
        if number == looks[-1]:
            done.matched.update(
                at_rms(hidden_pairs(before, state.weights), done.steps[-1].update.rms, NOMINAL_RMS * rate)
            )
        before = state.weights
    return done


def hidden_pairs(before: Weights, after: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
    """The hidden matrices before and after a step."""
    return [(value, after[name]) for name, value in before.items() if measure.is_hidden(name, value)]


def look(number: int, loss: float, before: Weights, after: Weights) -> Step:
    """What a step did to the weights and to what is served of them."""
    names = {name for name, value in before.items() if measure.is_hidden(name, value)}
    pairs = hidden_pairs(before, after)
    hidden, rest, predicted = {}, {}, {}
    for form in FORMS:
        old, new = codec_data.view(before, form), codec_data.view(after, form)
        hidden[form] = measure.served(old, new, names.__contains__)
        rest[form] = measure.served(old, new, lambda name: name not in names)
        predicted[form] = measure.predict(pairs, form)
    return Step(number, loss, measure.update_of(pairs), hidden, rest, predicted)


def at_rms(pairs: Sequence[tuple[np.ndarray, np.ndarray]], rms: float, wanted: float) -> dict[str, float]:
    """The changed share, by form, that an update of hidden matrices has when it is scaled from one RMS to another."""
    before = {str(number): old for number, (old, _) in enumerate(pairs)}
    after = {str(number): old + (new - old) * np.float32(wanted / rms) for number, (old, new) in enumerate(pairs)}
    return {
        form: measure.served(codec_data.view(before, form), codec_data.view(after, form), before.__contains__).share
        for form in FORMS
    }


def line(run: Run, form: str) -> str:
    """A run's row in the table of a form; figures are means over its settled steps."""
    settled = run.settled
    full, patch = settled[-1].full_bytes(form), fmean(step.patch_bytes(form) for step in settled)
    expected = fmean(step.predicted[form].share for step in settled)
    together = fmean(step.predicted[form].together for step in settled)
    return (
        f"{run.optimizer:6s} {run.rate:7.0e} {settled[-1].loss:6.3f} {run.rms / run.rate:8.3f} "
        f"{run.rms / fmean(step.update.weight_rms for step in settled):9.2e} "
        f"{fmean(step.update.shape for step in settled):6.3f} {run.share(form):9.4%} {expected:9.4%} {together:8.3f} "
        f"{run.matched[form]:9.4%} {fmean(step.share(form) for step in settled):9.4%} {patch:12,.0f} "
        f"{full / patch if patch else math.inf:8.1f}x"
    )


HEADER = (
    f"{'':6s} {'rate':>7s} {'loss':>6s} {'rms/rate':>8s} {'u/w':>9s} {'shape':>6s} {'changed':>9s} {'expected':>9s}"
    f" {'together':>8s} {'matched':>9s} {'all':>9s} {'patch, B':>12s} {'smaller':>9s}"
)


def report(runs: Sequence[Run]) -> None:
    """Print a table for each form."""
    for form in FORMS:
        print(f"\n{form}: the hidden matrices up to `matched`, then the whole model")
        print(HEADER)
        for each in runs:
            print(line(each, form))


def document(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Everything, as JSON values."""
    return [dataclasses.asdict(run) for run in runs]


def draw(path: Path, runs: Sequence[Run]) -> None:
    """For each form: changed share step by step and against the updates' RMS, and the size of patches."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 13), layout="constrained")
    axes = figure.subplots(3, len(FORMS))
    rates = sorted({run.rate for run in runs})
    colours = {rate: colormaps["viridis"](index / max(1, len(rates) - 1) * 0.9) for index, rate in enumerate(rates)}
    for (shares, against, sizes), form in zip(axes.T, FORMS, strict=True):
        for each in runs:
            steps = [step.number for step in each.steps]
            look = {"color": colours[each.rate], "linestyle": _LINES[each.optimizer]}
            label = f"{each.optimizer} {each.rate:g}"
            shares.plot(steps, [_percent(step.hidden[form].share) for step in each.steps], label=label, **look)
            sizes.plot(steps, [step.patch_bytes(form) for step in each.steps], label=label, **look)
        for name in OPTIMIZERS:
            chosen = [each for each in runs if each.optimizer == name]
            rms = [each.rms for each in chosen]
            expected = [fmean(step.predicted[form].share for step in each.settled) for each in chosen]
            against.plot(rms, [_percent(each.share(form)) for each in chosen], _MARKERS[name], label=name)
            against.plot(rms, list(map(_percent, expected)), linestyle=_LINES[name], label=f"{name}, expected")
        shares.set(title=f"{form}: hidden matrices", xlabel="step", ylabel="changed, %", yscale="log")
        against.set(xlabel="RMS of the update", ylabel="changed, %", xscale="log", yscale="log")
        sizes.set(title="whole model", xlabel="step", ylabel="patch, bytes", yscale="log")
        against.legend(fontsize=7)
        for each in (shares, against, sizes):
            each.grid(alpha=0.3)
    axes[0][-1].legend(fontsize=6, ncols=2)
    figure.savefig(path)


def _percent(share: float) -> float:
    """For a logarithmic axis: nothing instead of 0."""
    return 100 * share or math.nan


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="scripts/stillness_study", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw it: .png, .svg or .pdf")
    parser.add_argument(
        "--rates", type=float, nargs="+", metavar="RATE", default=RATES, help="learning rates  [default: 1e-6 … 1e-3]"
    )
    parser.add_argument("--quick", action="store_true", help="two rates and four steps: shows that it runs")
    arguments = parser.parse_args()
    for path in filter(None, (arguments.json, arguments.plot)):
        if not path.absolute().parent.is_dir():
            parser.error(f"{path.absolute().parent} is not a directory: make it first")
    runs = []
    for rate in QUICK_RATES if arguments.quick else arguments.rates:
        for optimizer in OPTIMIZERS:
            start = time.perf_counter()
            runs.append(run(optimizer, rate, QUICK_LOOKS if arguments.quick else LOOKS))
            print(f"{optimizer} at {rate:g}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            if arguments.json:  # after each run: they take minutes
                arguments.json.write_text(json.dumps(document(runs), indent=1), encoding="utf-8")
    report(runs)
    if arguments.plot:
        draw(arguments.plot, runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
