"""Small safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def write_safetensors(file: Path, tensors: Tensors) -> None:
    """In the format's own words: a header's length, the header, the data."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.astype("<f4").tobytes()
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": place}
        data += raw
    words = json.dumps(header).encode()
    file.write_bytes(len(words).to_bytes(8, "little") + words + data)


def write_model(folder: Path, seed: int = 0) -> Path:
    """A folder with a config and two files of random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for part in (1, 2):
        tensors = {f"layer.{part}.{i}": chance.normal(0, 1, (40, 100)) for i in range(3)}
        write_safetensors(folder / f"model-{part}-of-2.safetensors", tensors)
    return folder
