"""What an engine with peers needs, and what a request to it says to vLLM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import Problem
from deployments.engine.vllm.kv_tiers.host_tier import (
    PEER_TIER,
    host_tier,
    loads_of,
    part_tiers,
    written_address,
)
from deployments.wire.headers import HOST_ONLY, NO_TIERS

TIERS = {"host_bytes": 1 << 30, "eviction": "lru", "peers": True}
SOURCE = {"kv_request_id": "r", "remote_host": "10.0.0.1", "remote_port": 5710}


@pytest.mark.parametrize(
    ("kv_tiers", "kv_source", "loads"),
    [
        ("", "", None),
        ("", "10.0.0.1:5710", {"remote_kv_source": SOURCE}),
        (NO_TIERS, "", {"kv_load_tiers": []}),
        (
            HOST_ONLY,
            "10.0.0.1:5710",
            {"kv_load_tiers": [{"medium": "CPU"}], "remote_kv_source": SOURCE},
        ),
        ("", "nonsense", None),
        ("", "10.0.0.1:", None),
        ("", ":5710", None),
        ("", "10.0.0.1:-1", None),
        ("another release's", "", None),
    ],
)
def test_a_request_pulls_only_from_an_address(
    kv_tiers: str, kv_source: str, loads: dict[str, Any] | None
) -> None:
    assert loads_of(kv_tiers, kv_source, "r") == loads


def config_of(revision: str, cache_dtype: str = "auto") -> SimpleNamespace:
    """The parts of vLLM's configuration of an engine with peers."""
    return SimpleNamespace(
        kv_transfer_config=host_tier(TIERS, "10.0.0.1", Path("address")),
        model_config=SimpleNamespace(model="acme/model", revision=revision),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
    )


def kind_of(config: Any, *told: str) -> str:
    assert part_tiers(config, told) is None
    (tier,) = config.kv_transfer_config.kv_connector_extra_config["secondary_tiers"]
    assert tier["type"] == PEER_TIER
    return str(tier["kind"])


def test_engines_whose_blocks_differ_are_of_another_kind() -> None:
    kinds = [
        kind_of(config_of("a"), "proof"),
        kind_of(config_of("b"), "proof"),
        kind_of(config_of("a", cache_dtype="fp8"), "proof"),
        kind_of(config_of("a"), "another proof"),
    ]
    assert len(set(kinds)) == len(kinds)
    assert kind_of(config_of("a"), "proof") == kinds[0]


def test_an_engine_with_peers_does_not_start_without_nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Problem, match="needs NIXL"):
        host_tier(TIERS, "10.0.0.1", Path("address"))


def test_an_engine_with_peers_needs_an_ipv4_address() -> None:
    with pytest.raises(Problem, match="IPv4 addresses, and this engine's is fd00::1"):
        host_tier(TIERS, "fd00::1", Path("address"))


def test_an_engine_without_peers_has_no_address(tmp_path: Path) -> None:
    assert written_address(tmp_path / "peer") == ("", 0)
    (tmp_path / "peer").write_text("10.0.0.1:5710 4096")
    assert written_address(tmp_path / "peer") == ("10.0.0.1:5710", 4096)


def test_a_folder_for_files_that_cannot_be_written_is_named_with_a_remedy(tmp_path: Path) -> None:
    """Root may write into every folder, so a file is in its place."""
    taken = tmp_path / "taken"
    taken.write_text("")
    disk = {"folder": str(taken), "max_bytes": 1 << 30, "expire_s": 60.0}
    config: Any = config_of("a")
    config.kv_transfer_config = host_tier(
        {**TIERS, "peers": False, "disk": disk}, "10.0.0.1", Path("address")
    )
    with pytest.raises(Problem, match="cannot write there") as caught:
        part_tiers(config, ["proof"])
    assert str(taken) in caught.value.message
    assert "give that user the folder" in caught.value.remedy
