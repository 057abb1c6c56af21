"""miles calls slime's post-write hook, with its own clients as engines.

    --update-weight-transfer-mode disk-delta
    --custom-update-weight-post-write-path patchswarm.daemon.local.hooks.miles.publish_weights

An adapter's folder (LoRA) is published as well, its name being the label: give it a stream of its own.
"""

from __future__ import annotations

from .slime import publish_weights, wait_for_weights

__all__ = ["publish_weights", "wait_for_weights"]
