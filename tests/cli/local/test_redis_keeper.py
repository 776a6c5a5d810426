"""A real Redis that is killed, and what starts it again."""

import os
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from cli.local import cluster, processes
from cli.local.home import FleetState, Home
from cli.local.redis_keeper import LONGEST_PAUSE_S, STEADY_S, next_pause_s

# No limit on tries: every wait of these tests ends with a fact, not with a time.
PATIENTLY = Retry(ConstantBackoff(0.02), retries=1500)


@dataclass
class Embedded:
    """A fleet's Redis, asked at its first address with its first password."""

    home: Home
    state: FleetState

    def client(self) -> "redis.Redis":
        return redis.Redis.from_url(self.state.redis_url, retry=PATIENTLY)

    def pid(self) -> int:
        with self.client() as client:
            return int(client.info("server")["process_id"])

    def log(self) -> str:
        return (self.home.logs / "redis.log").read_text()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    home = Home(tmp_path)
    state = FleetState(
        run_id=secrets.token_hex(16),
        fleet_file="test",
        fleet_digest="",
        host="127.0.0.1",
        port=1,
        base_url="",
        model="",
        drain_timeout_s=1.0,
        started_at=0.0,
    )
    yield Embedded(home, cluster.start_redis(home, state))
    cluster.stop(home, state)


def test_a_redis_that_is_killed_restarts_at_its_address(embedded: Embedded) -> None:
    first = embedded.pid()
    os.kill(first, signal.SIGKILL)
    assert embedded.pid() != first
    assert "the embedded Redis exited; Antefix restarts it in 0 s" in embedded.log()
    with embedded.client() as client:
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "volatile-lru"


def test_a_redis_restarts_more_than_once(embedded: Embedded) -> None:
    pids = {embedded.pid()}
    for _ in range(2):
        os.kill(embedded.pid(), signal.SIGKILL)
        pids.add(embedded.pid())
    assert len(pids) == 3
    assert "restarts it in 1 s" in embedded.log()


def test_the_keeper_stops_with_its_fleet(embedded: Embedded) -> None:
    os.kill(embedded.pid(), signal.SIGKILL)
    embedded.pid()
    cluster.stop(embedded.home, embedded.state)
    assert processes.processes(embedded.state.run_id) == []


def test_a_redis_that_keeps_ending_is_restarted_with_increasing_delays() -> None:
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause_s(pauses[-1], lived_s=0.1))
    assert pauses[:4] == [0.0, 1.0, 2.0, 4.0]
    assert all(later >= sooner for sooner, later in pairwise(pauses))
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_redis_that_ran_for_a_long_time_restarts_without_delay() -> None:
    assert next_pause_s(LONGEST_PAUSE_S, lived_s=STEADY_S) == 0.0
