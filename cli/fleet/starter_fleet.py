"""A fleet file for one model on this machine, for `antefix init` and `antefix up --model`."""

from __future__ import annotations

import re
from pathlib import Path

from common.errors import Problem

_HEAD = """\
# One model on this machine, written by Antefix. Check it with `antefix config check`, start it with
# `antefix up`, and apply later changes with `antefix update`. docs/fleet-file.md lists every key.
name: {name}

gateway:
  host: 127.0.0.1
  port: 8000

pools:
  chat:
    model: {model}
    # engines that serve this model
    replicas: 1
    # rejects or queues requests that would wait longer for their first token
    # slo: {{interactive: {{ttft_s: 5}}}}
"""
_ON_CPUS = """\
    resources: {cpus: 1}
    env:
      # GiB of KV cache per replica
      VLLM_CPU_KVCACHE_SPACE: "2"
      # otherwise vLLM binds every engine of a machine to the same core
      VLLM_CPU_OMP_THREADS_BIND: nobind
    engine_args:
      # the longest context that fits into the KV cache
      max_model_len: -1
      # compiling takes longer than it saves here
      enforce_eager: true
"""
_ON_GPUS = """\
    # `antefix plan` computes the number of GPUs, their load and the speed for your objectives
    engine_args:
      tensor_parallel_size: 1
      # the longest context that fits into the GPU's memory
      max_model_len: -1
"""


def starter_fleet(model: str, on_cpus: bool) -> str:
    """Return the file's text. `model` as in a fleet file: `embedded`, a Hugging Face id or a
    path."""
    return _HEAD.format(name=name_of(model), model=model) + (_ON_CPUS if on_cpus else _ON_GPUS)


def name_of(model: str) -> str:
    """Return the last part of an id or a path, as the name of a fleet."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-") or "fleet"


def write_starter(model: str, on_cpus: bool, file: Path, replace: bool = False) -> None:
    """Write the file. Raises Problem if `file` exists and `replace` is false, or if it cannot be
    written."""
    if Path(model).exists():  # relative paths in a fleet file start at the working directory
        model = str(Path(model).absolute())
    if file.exists() and not replace:
        raise Problem(
            f"{file} already exists", "choose another file with --output-file, or add --force"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(starter_fleet(model, on_cpus))
    except OSError as error:
        raise Problem(
            f"{file} cannot be written: {error.strerror}", "choose another file with --output-file"
        ) from None
