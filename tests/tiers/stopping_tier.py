"""The tier of peers of an engine that stops in the middle of a copy.

An engine imports this module in the place of Antefix's (`tests.tiers.interrupted_copies`).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from deployments.engine.vllm.kv_tiers import peer_tier

# In the environment: while there is such a file, the engine stops before it writes.
STOPS_AT = "ANTEFIX_TEST_STOPS_AT"


class PeerTier(peer_tier.PeerTier):
    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        write, stops_at = self._data.write_blocks, Path(os.environ[STOPS_AT])

        def stop_and_write(*blocks: Any) -> Any:
            if stops_at.exists():
                stops_at.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)
            return write(*blocks)

        self._data.write_blocks = stop_and_write
