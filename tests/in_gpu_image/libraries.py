"""Whether vLLM's own libraries find all that they need.

    python -m tests.in_gpu_image.libraries    writes {library: what is missing, or null} as JSON

Run as it is, they may miss the driver's libraries; in the environment of `pretended_driver`, none.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
from pathlib import Path

# What a node's driver brings.
DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})
_MISSING = re.compile(r"^(\S+): cannot open shared object file")


def missing_in(error: str) -> str:
    """The library that the loader did not find, or all that it says of another failure."""
    found = _MISSING.match(error)
    return found[1] if found else error


def shared_libraries(package: str) -> list[Path]:
    """The compiled files of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return sorted(Path(spec.origin).parent.rglob("*.so"))


def main() -> None:
    import torch  # noqa: F401  # its libraries have no separate path in vLLM's

    print(json.dumps({str(library): _why_not(library) for library in shared_libraries("vllm")}))


def _why_not(library: Path) -> str | None:
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return missing_in(str(error))
    return None


if __name__ == "__main__":
    main()
