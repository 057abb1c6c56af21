"""OpenRLHF's strategies: save_model(model, tokenizer, output_dir, **kwargs), on all ranks; one is the first."""

import pickle

import pytest
from support.checkpoints import files_of, model, write

from patchswarm.daemon.local.errors import BadSourceError
from patchswarm.daemon.local.hooks.openrlhf import publish_saves
from patchswarm.daemon.local.trainer.publisher import Publisher


class Strategy:
    """As DeepspeedStrategy and FSDP's: the parts that a save touches."""

    def __init__(self, rank=0):
        self.rank = rank
        self.saved = []

    def is_rank_0(self):
        return self.rank == 0

    def save_model(self, model, tokenizer, output_dir, **kwargs):
        self.saved.append((tokenizer, kwargs))
        if self.is_rank_0():
            write(output_dir, model)


def test_every_save_is_published(head, tmp_path):
    strategy = publish_saves(Strategy())
    for step in (10, 20):
        folder = tmp_path / f"global_step{step}_hf"
        strategy.save_model(model(seed=step, layers=1, width=16), "tokenizer", folder, safe_serialization=True)
        assert files_of(head.path()) == files_of(folder)
    assert head.labels() == ["global_step10_hf", "global_step20_hf"]
    assert strategy.saved == [("tokenizer", {"safe_serialization": True})] * 2
    assert strategy.patchswarm_version == 2


def test_other_ranks_save_and_do_not_publish(head, tmp_path):
    strategy = publish_saves(Strategy(rank=1), "qwen")
    strategy.save_model({}, None, str(tmp_path / "x"))
    assert strategy.saved == [(None, {})]
    assert head.labels() == []


def test_wrapping_twice_publishes_once(head, tmp_path):
    publisher = Publisher("qwen", client=head.client)
    strategy = publish_saves(publish_saves(Strategy(), publisher), publisher)
    strategy.save_model(model(layers=1, width=16), None, tmp_path / "x")
    assert head.labels() == ["x"]


def test_a_strategy_can_be_sent_to_another_process(head, tmp_path):
    strategy = pickle.loads(pickle.dumps(publish_saves(Strategy(), "qwen")))  # as Ray sends it to its actors
    strategy.save_model(model(layers=1, width=16), None, tmp_path / "x")
    assert head.labels() == ["x"]
    assert strategy.saved


def test_a_publish_that_fails_stops_the_save(head, tmp_path):
    head.failure = BadSourceError("no")
    with pytest.raises(BadSourceError):
        publish_saves(Strategy()).save_model(model(layers=1, width=16), None, tmp_path / "x")
