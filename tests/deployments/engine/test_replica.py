"""What a replica says of an engine that does not start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deployments.engine import replica
from deployments.engine.replica import EngineFailed, engine_failures

SEE_ABOVE = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
REASON = "ValueError: Available memory on node 0 (0.97/3.0 GiB) is less than requested memory"


def failing(error: Exception) -> None:
    async def start() -> None:
        async with engine_failures():
            raise error

    asyncio.run(start())


def test_where_vllm_says_to_look_above_its_own_reason_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "ray_logs", lambda: tmp_path)
    (tmp_path / "worker-1.err").write_text(f"(EngineCore pid=7) ERROR [core.py:1] {REASON}\n")
    with pytest.raises(EngineFailed) as raised:
        failing(RuntimeError(SEE_ABOVE))
    assert str(raised.value) == REASON


def test_a_reason_that_vllm_gives_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "ray_logs", lambda: None)
    with pytest.raises(EngineFailed, match=r"^OSError: no file named config\.json$"):
        failing(OSError("no file named config.json"))
