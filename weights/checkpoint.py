"""The weights in a model's folder: how many bytes, of which types, and whether they are the same.

Only the headers of safetensors files are read, and samples of their tensors. A folder without
such files, or with a damaged one, is a `Problem`.

The digest covers config.json, each file's name, size and header (every tensor's name, type,
shape and place), and of every tensor its first, middle and last 4 KiB. It costs milliseconds
where a sum over 40 GB costs minutes of an engine's start, and it tells apart whatever a quantizer,
a fine-tuning or a download makes anew, since these change all of a tensor. It is no seal against
somebody who changes a few bytes in the middle of a large tensor on purpose.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import Problem

SAMPLE = 4096
LENGTH_BYTES = 8
# of a header, by the format's own reference implementation
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
    """Hexadecimal; equal for equal weights, whatever the folder is called."""
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
    """With its length, so that no two lists of parts give one digest."""
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _sampled(begin: int, end: int) -> list[int]:
    """Where samples of a tensor that takes these bytes begin."""
    last = max(begin, end - SAMPLE)
    return sorted({begin, begin + (last - begin) // 2, last})


def _header(file: BinaryIO, path: Path) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """As it stands in the file, and its tensors."""
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
