"""Every key in Redis is made in one place, and names its fleet and its schema."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.crc import key_slot

from router.board import active, fleet_settings, placed_stream
from router.board import pool_demand as demand
from router.index import slots
from router.redis import redis_keys
from tests.house import modules

BOARDS = "prod.0123abcd", "prod.0123abcd@blue", "prod.0123abcd@blue/engine", "prod"
KEYS: dict[str, Callable[[str], str]] = {
    "active": active.active_key,
    "batches": slots.batches_key,
    "decided": demand.decided_key,
    "demand": demand.demand_key,
    "placed": placed_stream.stream_key,
    "s": lambda board: slots.segment_prefix(board).decode(),
    "settings": fleet_settings.settings_key,
    "slot": lambda board: slots.lease_key(board, 3),
    "slots": slots.slots_key,
}


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("kind", KEYS)
def test_a_key_contains_its_board_its_schema_and_its_kind(kind: str, board: str) -> None:
    found = KEYS[kind](board)
    assert found.startswith(f"{{afx:{board}}}:{redis_keys.SCHEMA}:{kind}")
    assert redis_keys.kind_of(found) == kind
    assert redis_keys.BoardName(board).fleet_name == "prod"


@pytest.mark.parametrize("board", BOARDS)
def test_all_keys_of_a_board_are_in_one_hash_slot(board: str) -> None:
    assert len({key_slot(of(board).encode()) for of in KEYS.values()}) == 1


@pytest.mark.parametrize("kind", KEYS)
def test_releases_with_other_schemas_share_no_key(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = KEYS[kind]("prod.0123abcd")
    monkeypatch.setattr(redis_keys, "SCHEMA", redis_keys.SCHEMA + 1)
    assert KEYS[kind]("prod.0123abcd") != now


def test_a_fleet_id_distinguishes_secrets_and_reveals_none() -> None:
    ids = {redis_keys.fleet_id(secret) for secret in ("", "a", "b", "secret", "secret ")}
    assert len(ids) == 5
    assert all(re.fullmatch("[0-9a-f]{8}", found) for found in ids)


def test_no_other_module_builds_a_redis_key() -> None:
    own = Path(redis_keys.__file__)
    spelled = [name for name, path in modules().items() if "{afx:" in path.read_text()]
    assert spelled == [name for name, path in modules().items() if path == own]


@pytest.mark.parametrize(
    ("fleet_board", "name"), [("prod", "prod"), ("prod.1a2b", "prod"), ("prod.1a2b@blue", "prod")]
)
def test_a_pools_board_names_its_fleet_and_its_pool(fleet_board: str, name: str) -> None:
    board = redis_keys.BoardName.of(fleet_board, "large")
    assert board == f"{fleet_board}/large"
    assert (board.fleet_board, board.fleet_name, board.pool) == (fleet_board, name, "large")
