"""Which modules of vLLM's models do not import in this Python: python -m tests.in_gpu_image.models

Writes one line of JSON: the number of modules, and those that fail with their error.
"""

from __future__ import annotations

import importlib
import json
import os


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    from vllm.model_executor.models import ModelRegistry

    modules = {model.module_name for model in ModelRegistry.models.values()}
    failed = {name: why for name in sorted(modules) if (why := _error_of(name))}
    print(json.dumps({"modules": len(modules), "failed": failed}), file=answer, flush=True)


def _error_of(module: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
