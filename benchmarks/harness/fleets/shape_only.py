"""Folders from which vLLM loads a model's shape with random weights (`load_format: dummy`).

A GPU takes as long with random weights as with trained ones, except that drafts are not accepted,
and nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deployments.models.model import embedded_model
from weights.model.known_models import known_config

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# vLLM reads these; the planner does not.
NOT_OF_A_SHAPE = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu"}


def shape_only(model: str, into: Path, vocabulary: int | None = None) -> Path:
    """Write a folder in `into` with the configuration of a model that the planner knows, and the
    tokenizer of the embedded model.

    With `vocabulary`, the model has this number of tokens; otherwise its own number, most of which
    that tokenizer has no text for. Raises LookupError for an unknown model.
    """
    if (config := known_config(model)) is None:
        raise LookupError(f"the planner does not know the shape of {model}")
    folder = into / model.replace("/", "--")
    folder.mkdir()
    fewer = {} if vocabulary is None else {"vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps({**NOT_OF_A_SHAPE, **config, **fewer}))
    embedded = embedded_model(lambda fraction, step: None)
    for file in TOKENIZER:
        (folder / file).write_bytes((embedded / file).read_bytes())
    return folder


def with_shapes_only(fleet_file: Path, into: Path) -> Mapping[str, Any]:
    """The content of a fleet file. Its pools with `load_format: dummy` have folders in `into` for
    models, with the tokens of the embedded model's tokenizer."""
    embedded = json.loads((embedded_model(lambda fraction, step: None) / "config.json").read_text())
    description: dict[str, Any] = yaml.safe_load(fleet_file.read_text())
    for pool in description["pools"].values():
        if pool.get("engine_args", {}).get("load_format") == "dummy":
            pool["model"] = str(shape_only(pool["model"], into, embedded["vocab_size"]))
    return description
