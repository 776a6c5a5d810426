"""A model's config.json on this machine.

    embedded             the built model's folder; before that, its future content
    a folder             its config.json
    a Hugging Face id    the Hub's cache; from the Hub itself only with `download`
    s3:// and the like   not read

The result is None if it is unknown. Nothing is downloaded unless requested.
"""

import json
from pathlib import Path
from typing import Any

from common.errors import Problem
from deployments.models.model import EMBEDDED, EMBEDDED_NAME, cache_folder

CONFIG = "config.json"

# HuggingFaceTB/SmolLM2-135M-Instruct, as convert_gguf writes it.
EMBEDDED_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}


def model_config(
    model: str, revision: str | None = None, *, download: bool = False
) -> dict[str, Any] | None:
    """Return the config of `model`, in the form of a fleet file or a command line.

    Raises Problem for a folder that is not a model, and for a failed download.
    """
    folder = model_folder(model)
    if folder is not None and folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise Problem(
                f"the folder {model!r} holds no {CONFIG} (looked at {folder})",
                "pass the folder of a saved model",
            )
        return _read(folder / CONFIG)
    if model == EMBEDDED:
        return dict(EMBEDDED_CONFIG)
    if folder is not None or "://" in model:
        return None
    file = _downloaded(model, revision) if download else _in_hub_cache(model, revision)
    return None if file is None else _read(file)


def model_folder(model: str) -> Path | None:
    """Return the folder of a model's files, existing or not; None for an id or a URL."""
    if model == EMBEDDED:
        return cache_folder() / "models" / EMBEDDED_NAME
    if not model.startswith(("/", ".", "~")):
        return None
    return Path(model).expanduser().absolute()


def _in_hub_cache(model: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(model, CONFIG, revision=revision)
    except HFValidationError:
        return None
    # Otherwise None, or a marker that the Hub has no such file.
    return Path(file) if isinstance(file, str) else None


def _downloaded(model: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, CONFIG, revision=revision))
    # Errors of the Hub, the network and the file system have no common base class.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Problem(
            f"{CONFIG} of {model!r} cannot be downloaded: {reason}",
            "correct the id, set HF_TOKEN if the model requires one, or pass a folder",
        ) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Problem(f"{file} cannot be read: {error}", "download the model again") from error
    if not isinstance(config, dict):
        raise Problem(f"{file} is not a JSON object", "download the model again")
    return config
