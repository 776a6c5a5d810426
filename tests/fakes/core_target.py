"""What a test has a process of `core_process` run instead of an engine."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path


def write_process_facts(file: str, ends_with: int = 0) -> None:
    """Writes what it finds around it, then ends."""
    found = {
        "pid": os.getpid(),
        "environment": dict(os.environ),
        "path": sys.path,
        "gc": gc.isenabled(),
        "frozen": gc.get_freeze_count(),
    }
    part = Path(file).with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(file)
    if ends_with:
        sys.exit(ends_with)
