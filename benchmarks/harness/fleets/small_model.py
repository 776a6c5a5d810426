"""The embedded model's first layers: an engine fast enough on one core to compare routers with.

    <cache>/models/<embedded model>-first-<layers>/   whole: weights, tokenizer, chat template

Routing depends on the number of prompt tokens and on which of them are cached, not on their
meaning. So a fraction of the model, of which a core computes thousands of prompt tokens a second,
replaces a GPU; its answers are gibberish. It is made once. Raises Problem without the embedded
model.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from common.file_lock import only_one
from deployments.models.checksums import damage, seal
from deployments.models.model import embedded_model
from weights.speculation.drafts import first_layers

LAYERS = 4


def small_model(layers: int = LAYERS) -> Path:
    """The folder of the embedded model with `layers` layers, made if missing or damaged."""
    whole = embedded_model(lambda fraction, step: print(f"{step} ({fraction:.0%})", flush=True))
    small = whole.with_name(f"{whole.name}-first-{layers}")
    with only_one(small.with_name(small.name + ".lock"), on_wait=lambda: None):
        if damage(small) is not None:
            shutil.rmtree(small, ignore_errors=True)
            first_layers(whole, layers, small)
            seal(small)
    return small
