"""A draft model from a model's first layers, with the same tokenizer, embeddings, norm and head.

    python -m weights.speculation.drafts MODEL LAYERS FOLDER

Bytes are copied unchanged, so a layer keeps its dtype and its quantization, and neither torch nor
the memory of the model is needed. FOLDER is created complete, in one rename, or not at all. Such a
draft is nearly free to create and often wrong: `antefix tune-speculation` measures whether it pays.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Problem

WEIGHTS = "model.safetensors"
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_KEPT_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"}
_NOT_KEPT = ("*.index.json", "antefix-evaluation.json")
# lists with one entry per layer, in models that have them
_LISTS_BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")


@dataclass(frozen=True)
class _Stored:
    """A tensor in a safetensors file; `begin` and `end` are bytes from the file's start."""

    file: Path
    dtype: str
    shape: list[int]
    begin: int
    end: int


def first_layers(model: Path, layers: int, folder: Path) -> None:
    """Write the model in `model` with only its first `layers` layers to `folder`, which must not
    exist.

    Raises Problem for a model that cannot be cut like this, OSError for errors of the disk.
    """
    config = _config(model)
    whole = config["num_hidden_layers"]
    if not 1 <= layers < whole:
        raise Problem(
            f"a draft of {layers} layers cannot be made of a model with {whole}",
            f"choose 1 to {whole - 1}",
        )
    if folder.exists():
        raise Problem(f"{folder} already exists", "remove it, or choose another folder")
    kept = {name: one for name, one in _tensors(model).items() if _layer_of(name) < layers}
    if not any(_LAYER.search(name) for name in kept):
        raise Problem(
            f"{model} names its layers in an unknown way",
            "only weights called ...layers.<number>... can be cut; use a draft model instead",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(kept, partial / WEIGHTS)
        for file in _companions(model):
            shutil.copy(file, partial / file.name)
        (partial / "config.json").write_text(json.dumps(_cut(config, layers), indent=2) + "\n")
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _config(model: Path) -> dict[str, Any]:
    file = model / "config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text())
    except OSError as error:
        raise Problem(
            f"{file} cannot be read: {error.strerror}", "pass a model's folder"
        ) from error
    if not isinstance(config.get("num_hidden_layers"), int):
        raise Problem(
            f"{file} has no num_hidden_layers", "only plain text models can be cut; use a draft"
        )
    return config


def _cut(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    lists = {key: config[key][:layers] for key in _LISTS_BY_LAYER if config.get(key)}
    return {**config, **lists, "num_hidden_layers": layers}


def _tensors(model: Path) -> dict[str, _Stored]:
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise Problem(f"{model} contains no *.safetensors", "pass a folder with such weights")
    return {name: stored for file in files for name, stored in _tensors_of(file)}


def _tensors_of(file: Path) -> Iterator[tuple[str, _Stored]]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    for name, one in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in one["data_offsets"])
            yield name, _Stored(file, one["dtype"], one["shape"], begin, end)


def _layer_of(name: str) -> int:
    """Return the layer of a tensor; -1 for a tensor outside of layers."""
    found = _LAYER.search(name)
    return int(found[1]) if found else -1


def _write(tensors: Mapping[str, _Stored], target: Path) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, one in tensors.items():
        size = one.end - one.begin
        header[name] = {
            "dtype": one.dtype,
            "shape": one.shape,
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    # readers map the file, so values start at a multiple of 8
    text += b" " * (-len(text) % 8)
    with target.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for one in tensors.values():
            with one.file.open("rb") as source:
                source.seek(one.begin)
                _copy(source, out, one.end - one.begin)


def _copy(source: Any, out: Any, size: int) -> None:
    while size > 0:
        part = source.read(min(size, 1 << 24))
        if not part:
            raise Problem(f"{source.name} is truncated", "copy or download it again")
        out.write(part)
        size -= len(part)


def _companions(model: Path) -> Iterator[Path]:
    """Return tokenizer, chat template and configurations, without sums, which are those of the
    whole model."""
    for file in sorted(model.iterdir()):
        named_out = any(file.match(pattern) for pattern in _NOT_KEPT)
        if file.is_file() and file.suffix in _KEPT_SUFFIXES and not named_out:
            yield file


def main(arguments: list[str]) -> int:
    if len(arguments) != 3 or not arguments[1].isdigit():
        print("python -m weights.speculation.drafts MODEL LAYERS FOLDER", file=sys.stderr)
        return 2
    model, layers, folder = arguments
    try:
        first_layers(Path(model).expanduser(), int(layers), Path(folder).expanduser())
    except (Problem, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
