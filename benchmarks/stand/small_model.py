"""The embedded model's first layers: an engine fast enough on one core to compare routers with.

    <cache>/models/<embedded model>-first-<layers>/   whole: weights, tokenizer, chat template

Routing depends on the number of prompt tokens and on which of them are cached, not on their
meaning. So a fraction of the model, of which a core computes thousands of prompt tokens a second,
replaces a GPU; its answers are gibberish. It is made once, in a separate process because that needs
torch, and renamed at the end. Raises CalledProcessError when that process fails, and Problem
without the embedded model.

    python -m benchmarks.stand.small_model SOURCE FOLDER LAYERS
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from common.file_lock import only_one
from deployments.models.checksums import damage, flush_to_disk, seal
from deployments.models.model import embedded_model

LAYERS = 4


def small_model(layers: int = LAYERS) -> Path:
    """The folder of the embedded model with `layers` layers, made if missing."""
    whole = embedded_model(lambda fraction, step: print(f"{step} ({fraction:.0%})", flush=True))
    small = whole.with_name(f"{whole.name}-first-{layers}")
    with only_one(small.with_name(small.name + ".lock"), on_wait=lambda: None):
        if not small.exists() or damage(small) is not None:
            _make(whole, small, layers)
    return small


def _make(whole: Path, small: Path, layers: int) -> None:
    partial = small.with_name(small.name + ".partial")
    for left_over in (partial, small):
        if left_over.exists():
            shutil.rmtree(left_over)
    arguments = [str(whole), str(partial), str(layers)]
    subprocess.run([sys.executable, "-m", "benchmarks.stand.small_model", *arguments], check=True)
    seal(partial)
    partial.rename(small)
    flush_to_disk(small.parent)


def cut(source: Path, folder: Path, layers: int) -> None:
    """Write the model in `source`, cut to its first `layers` layers, into `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # otherwise it lists the omitted layers
    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(source)
    config.num_hidden_layers = layers
    model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype="auto")
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
