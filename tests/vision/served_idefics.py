"""A tiny Idefics3 behind a real gateway, outside Ray: python -m tests.vision.served_idefics

As `tests.every_field.served_engine`, whose arguments it takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.every_field.served_engine import serve
from tests.vision import tiny_idefics

if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "model")
        asyncio.run(serve(json.loads(sys.argv[1]), folder, to_the_test, tiny_idefics.make))
