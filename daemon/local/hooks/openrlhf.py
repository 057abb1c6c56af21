"""OpenRLHF: each Hugging Face checkpoint that its strategy saves becomes a version.

    strategy = get_strategy(args)
    publish_saves(strategy, "qwen")

OpenRLHF has no hook of its own, so `strategy.save_model(model, tokenizer, output_dir, **kwargs)` is wrapped: DeepSpeed
and FSDP strategies share that signature. Without a change to the script, `patchswarm watch CKPT_PATH --match '*_hf'`
does the same beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ..trainer.publisher import Publisher
from .settings import publisher_for

ATTRIBUTE: Final = "patchswarm_version"
"""Where a strategy tells the version that its last save has become."""


class PublishingSave:
    """`save_model` of a strategy, and then the publish, on the first rank. A class, so that Ray can send it along."""

    def __init__(self, strategy: Any, publisher: Publisher) -> None:
        self.strategy = strategy
        self.publisher = publisher
        self.save = strategy.save_model

    def __call__(self, model: Any, tokenizer: Any, output_dir: Any, **kwargs: Any) -> None:
        """Save as before; when that is done on all ranks, publish the directory under its name as label."""
        self.save(model, tokenizer, output_dir, **kwargs)
        if self.strategy.is_rank_0():
            version = self.publisher.publish(Path(output_dir), label=Path(output_dir).name)
            setattr(self.strategy, ATTRIBUTE, version)


def publish_saves(strategy: Any, stream: str | Publisher | None = None) -> Any:
    """Have every save of `strategy` published in `stream` (default: $PATCHSWARM_STREAM); returns the strategy.

    `strategy.patchswarm_version` is then the number of the newest version, on the first rank. Doing it twice does no
    harm. Saves raise what `Publisher.publish` raises.
    """
    if isinstance(strategy.save_model, PublishingSave):
        return strategy
    strategy.save_model = PublishingSave(strategy, publisher_for(stream))
    return strategy
