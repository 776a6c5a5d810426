"""Compiled code that survives a pod: vLLM's and Triton's caches below one folder.

    $ANTEFIX_COMPILE_CACHE/vllm      torch.compile's artifacts, with Inductor's and their kernels
    $ANTEFIX_COMPILE_CACHE/triton    the Triton kernels that vLLM calls itself

The chart sets a folder on the models volume. Engines on several nodes share it: each entry has a
key of vLLM's version, the configuration and the GPU, and is renamed into place. If this user cannot
write the folder, the engine compiles as it would without one. vLLM sets TORCHINDUCTOR_CACHE_DIR
itself, below VLLM_CACHE_ROOT. CUDA graphs are never stored: each engine captures its own. Source:
vllm/compilation/compiler_interface.py and decorators.py of vLLM 0.32.
"""

from __future__ import annotations

import ast
import logging
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

logger = logging.getLogger("ray.serve")

FOLDER = "ANTEFIX_COMPILE_CACHE"
_BELOW = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton"}
# vLLM lists compiled graphs in this file if it makes no AOT artifact, and writes it in place.
_LISTS = "torch_compile_cache/*/rank_*/*/vllm_compile_cache.py"


def keep_compiled(environ: MutableMapping[str, str]) -> None:
    """Point vLLM and Triton at the folder in `environ`, unless it already sets their caches.

    Call it before an engine starts; raises nothing.
    """
    if not (named := environ.get(FOLDER)):
        return
    folders = {key: Path(named, name) for key, name in _BELOW.items() if key not in environ}
    try:
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        logger.warning(
            "failed to use the compile cache; compiling again: %s=%s: %s", FOLDER, named, error
        )
        return
    environ.update({key: str(folder) for key, folder in folders.items()})
    _remove_broken_lists(Path(environ["VLLM_CACHE_ROOT"]))


def _remove_broken_lists(root: Path) -> None:
    """Remove truncated lists: a pod that ends while it writes a list leaves half of it, which would
    make vLLM fail."""
    for path in root.glob(_LISTS):
        try:
            ast.literal_eval(path.read_text(encoding="utf-8"))
        except OSError:  # another engine removed it
            continue
        except (ValueError, SyntaxError):
            path.unlink(missing_ok=True)
            logger.warning("removed a truncated list of compiled graphs: %s", path)
