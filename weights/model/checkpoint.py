"""The weights in a model's folder: their bytes, their types, and a digest.

Only the headers of safetensors files are read, and samples of their tensors. A folder without such
files, or with a damaged one, is a `Problem`.

The digest covers config.json, and each file's name, size and header (every tensor's name, type,
shape and place). It also covers the first, middle and last 4 KiB of every tensor. It costs
milliseconds, where a sum over 40 GB costs minutes of an engine's start. It detects all changes of a
quantizer, a fine-tuning or a download, since these change all of a tensor. It does not protect
against a deliberate change of a few bytes in the middle of a large tensor.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import Problem

SAMPLE = 4096
LENGTH_BYTES = 8
# maximum of the format's reference implementation, in bytes
LARGEST_HEADER = 100_000_000


def weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Problem(
            f"{folder} has no *.safetensors file", "pass the folder of a model in that format"
        )
    return files


def weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(folder))


def weights_digest(folder: Path) -> str:
    """Return a hexadecimal digest; equal for equal weights, regardless of the folder's name."""
    digest = hashlib.sha256()
    config = folder / "config.json"
    if config.is_file():
        _add(digest, config.read_bytes())
    for path in weight_files(folder):
        with path.open("rb") as file:
            raw, tensors = _header(file, path)
            _add(digest, path.name.encode(), str(path.stat().st_size).encode(), raw)
            data = LENGTH_BYTES + len(raw)
            for _, tensor in sorted(tensors.items()):
                begin, end = tensor["data_offsets"]
                for place in _sampled(begin, end):
                    file.seek(data + place)
                    _add(digest, file.read(min(SAMPLE, end - place)))
    return digest.hexdigest()


def _add(digest: Any, *parts: bytes) -> None:
    """Add a part with its length, so that no two lists of parts give one digest."""
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _sampled(begin: int, end: int) -> list[int]:
    """Return where samples of a tensor with these bytes start."""
    last = max(begin, end - SAMPLE)
    return sorted({begin, begin + (last - begin) // 2, last})


def _header(file: BinaryIO, path: Path) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Return the header as stored in the file, and its tensors."""
    try:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        raw = file.read(min(length, LARGEST_HEADER))
        tensors = {name: each for name, each in json.loads(raw).items() if name != "__metadata__"}
        if len(raw) != length or any("data_offsets" not in each for each in tensors.values()):
            raise ValueError
    except (ValueError, AttributeError, TypeError) as error:
        raise Problem(
            f"{path} is not a whole safetensors file", "build or download the model again"
        ) from error
    return raw, tensors
