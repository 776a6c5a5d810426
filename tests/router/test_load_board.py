"""The load board: what a gateway has read of the replicas, and what it has placed since."""

import json
import time

import msgspec
import pytest

from router.board.active import Active
from router.board.load import (
    LAST_KNOWN_S,
    UNSEEN_S,
    LoadBoard,
    LoadReport,
    ReplicaLoad,
    ReplicaQueue,
)
from router.index import slots
from tests.router.loads import load, loads_ready_at


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> LoadBoard:
    """Read a moment ago: two idle replicas."""
    board = LoadBoard(clock)
    board.update([load("a", slot=0), load("b", slot=1)])
    return board


def test_a_placement_counts_until_a_snapshot_names_it(board: LoadBoard) -> None:
    board.placed("t1", 0, 100)
    board.placed("t2", 0, 50)
    seen = board.loads()
    assert (seen["a"].queue.waiting, seen["a"].queue.prefill_tokens) == (2, 150)
    assert seen["b"] == load("b", slot=1)
    board.update([load("a", slot=0, waiting=1, arrived=("t1",)), load("b", slot=1)])
    assert (board.loads()["a"].queue.waiting, board.loads()["a"].queue.prefill_tokens) == (2, 50)


def test_a_placement_counts_every_sequence_that_its_engine_creates(board: LoadBoard) -> None:
    board.placed("t1", 0, 100, 8)
    board.placed("t2", 0, 50)
    assert (board.loads()["a"].queue.waiting, board.loads()["a"].queue.prefill_tokens) == (9, 150)
    board.unplaced("t1")
    assert (board.loads()["a"].queue.waiting, board.loads()["a"].queue.prefill_tokens) == (1, 50)
    board.placed("t3", 0, 10, 8)
    board.unplaced("t2")
    board.unplaced("t3")
    assert board.loads()["a"] == load("a", slot=0)


def test_loads_from_tiers_count_until_their_replica_reports_them(board: LoadBoard) -> None:
    board.placed("t1", 0, 100, host_tokens=256, disk_tokens=128)
    board.placed("t2", 0, 100, host_tokens=64, peer_tokens=32)
    assert board.loads()["a"].queue == ReplicaQueue(2, 0, 200, 320, 128, 32)
    reported = load("a", slot=0, waiting=1, queued_host_tokens=256, arrived=("t1",))
    board.update([reported, load("b", slot=1)])
    assert board.loads()["a"].queue == ReplicaQueue(2, 0, 100, 320, 0, 32)
    board.unplaced("t2")
    assert board.loads()["a"].queue == reported.queue


def test_a_report_with_an_answer_has_the_whole_queue() -> None:
    report = LoadReport(5, ReplicaQueue(1, 2, 3, 4, 5, 6))
    assert LoadReport.from_header(report.to_header()) == report
    with pytest.raises(ValueError):
        LoadReport.from_header("5 1 2 3 4 5")  # of another release


def test_a_placement_that_never_arrives_is_forgotten(board: LoadBoard, clock: Clock) -> None:
    board.placed("t1", 0, 100)
    clock.now += UNSEEN_S + 0.001
    assert board.loads()["a"] == load("a", slot=0)


def test_a_failed_placement_no_longer_counts(board: LoadBoard) -> None:
    board.placed("t1", 0, 100)
    board.unplaced("t1")
    board.unplaced("t1")
    assert board.loads()["a"] == load("a", slot=0)


def test_a_report_with_an_answer_counts_until_a_newer_snapshot(
    board: LoadBoard,
) -> None:
    stale = load("a", slot=0, waiting=1, queued_prefill_tokens=300, sequence=4)
    board.update([stale, load("b", slot=1)])
    board.reported("a", LoadReport(5, ReplicaQueue(0, 1, 0)))
    seen = board.loads()["a"]
    assert (seen.queue.waiting, seen.queue.running, seen.queue.prefill_tokens) == (0, 1, 0)
    board.update([stale, load("b", slot=1)])  # read again, and still from before the report
    assert board.loads()["a"].queue.waiting == 0
    board.update([load("a", slot=0, waiting=2, sequence=6), load("b", slot=1)])
    assert board.loads()["a"].queue.waiting == 2


def test_a_report_does_not_outlive_its_replicas_incarnation(board: LoadBoard) -> None:
    board.update([load("a", incarnation="old", sequence=9, waiting=5)])
    board.update([load("a", incarnation="new", sequence=1)])
    assert board.loads()["a"].queue.waiting == 0


def test_a_report_of_a_replica_that_left_is_dropped(board: LoadBoard) -> None:
    board.reported("gone", LoadReport(5, ReplicaQueue(0, 1, 0)))
    assert set(board.loads()) == {"a", "b"}


def test_a_placement_on_an_unclaimed_slot_adds_no_replica(board: LoadBoard) -> None:
    board.placed("t1", 7, 100)
    assert set(board.loads()) == {"a", "b"}


def test_all_replicas_get_the_mean_prefill_rate(board: LoadBoard) -> None:
    board.update([load("a", prefill_rate=100.0), load("b", slot=1, prefill_rate=300.0)])
    assert {load.pace.prefill_rate for load in board.loads().values()} == {200.0}


def test_all_replicas_get_the_mean_decode_time(board: LoadBoard) -> None:
    told = [load("a", decode_s=2.0), load("b", slot=1, decode_s=4.0), load("new", slot=2)]
    board.update(told)
    assert {load.pace.decode_s for load in board.loads().values()} == {3.0}


def test_expired_snapshots_are_ignored(board: LoadBoard, clock: Clock) -> None:
    clock.now += slots.LEASE_S
    assert board.loads() and board.is_read
    clock.now += 0.001
    assert board.loads() == {}
    assert not board.is_read
    board.update([])
    assert board.is_read


def test_an_empty_board_still_lists_its_last_known_replicas(board: LoadBoard, clock: Clock) -> None:
    board.update([])
    assert board.loads() == {}
    assert set(board.last_known()) == {"a", "b"}
    clock.now += LAST_KNOWN_S + 1
    assert board.last_known() == {}


@pytest.mark.parametrize("avoided", [{"leaving": True}, {"closed": True}, {"suspect": True}])
def test_an_expired_board_offers_no_replica_that_was_avoided(
    board: LoadBoard, clock: Clock, avoided: dict[str, bool]
) -> None:
    board.update([load("a", url="http://a", **avoided), load("b", slot=1)])
    clock.now += slots.LEASE_S + 0.001
    assert not board.loads() and set(board.last_known()) == {"b"}
    assert board.address_of("a") == "http://a"  # who has an answer there still finds it


def test_an_expired_board_offers_leaving_replicas_if_there_are_no_others(
    board: LoadBoard, clock: Clock
) -> None:
    board.update([load("a", leaving=True), load("b", slot=1, closed=True)])
    clock.now += slots.LEASE_S + 0.001
    assert set(board.last_known()) == {"a"}


def test_a_board_that_was_never_read_is_empty() -> None:
    board = LoadBoard(time.monotonic)
    assert board.loads() == board.last_known() == {}


@pytest.mark.parametrize(
    ("current", "serving"),
    [
        (None, ["r1", "r2", "r0"]),
        (Active(0), ["r1"]),
        (Active(1), ["r1"]),
        (Active(2, 1), ["r1", "r2"]),
        (Active(3), ["r1", "r2", "r0"]),
        (Active(99), ["r1", "r2", "r0"]),
    ],
)
def test_the_replicas_that_have_been_ready_longest_take_traffic(
    board: LoadBoard, current: Active | None, serving: list[str]
) -> None:
    board.update(loads_ready_at(300.0, 100.0, 200.0), current)
    assert list(board.loads()) == serving
    assert list(board.warm()) == ["r1", "r2", "r0"][len(serving) :]
    assert set(board.last_known()) == {"r0", "r1", "r2"}


def test_replicas_ready_at_the_same_time_have_one_order_everywhere(board: LoadBoard) -> None:
    both = loads_ready_at(100.0, 100.0)
    for snapshots in (both, both[::-1]):
        board.update(snapshots, Active(1))
        assert list(board.loads()) == ["r0"]


def test_a_dead_replica_is_replaced_by_the_next(board: LoadBoard) -> None:
    replicas = loads_ready_at(100.0, 200.0, 300.0)
    board.update(replicas, Active(2))
    board.update(replicas[1:], Active(2))
    assert list(board.loads()) == ["r1", "r2"]
    assert not board.warm()


def test_a_sleeping_replica_is_promoted_last(board: LoadBoard) -> None:
    old, young = loads_ready_at(100.0, 200.0)
    board.update([msgspec.structs.replace(old, asleep=True), young], Active(1))
    assert list(board.loads()) == ["r1"]
    board.update([msgspec.structs.replace(old, asleep=True)], Active(1))
    assert list(board.loads()) == ["r0"]


def test_a_replica_in_two_slots_counts_once(board: LoadBoard) -> None:
    """While it moves, its old lease has not ended."""
    moving = load("r0", slot=5, incarnation="new", started_at=100.0)
    board.update([*loads_ready_at(100.0, 200.0), moving], Active(2))
    assert list(board.loads()) == ["r0", "r1"]


def test_a_warm_replica_is_read_and_counted_like_the_others(board: LoadBoard, clock: Clock) -> None:
    board.update(loads_ready_at(100.0, 200.0), Active(1))
    board.placed("t1", 1, 100)
    board.reported("r1", LoadReport(5, ReplicaQueue(0, 3, 0)))
    assert (board.warm()["r1"].queue.waiting, board.warm()["r1"].queue.running) == (1, 3)
    clock.now += slots.LEASE_S + 0.001
    assert not board.warm()


def test_an_unmeasured_rate_does_not_affect_the_mean(board: LoadBoard) -> None:
    (one,) = loads_ready_at(100.0, prefill_rate=9000.0)
    fresh = load("new", slot=1, prefill_rate=500.0, prefill_learned=False)
    board.update([one, fresh])
    assert {of.pace.prefill_rate for of in board.loads().values()} == {9000.0}
    assert board.prefill_learned
    board.update([])
    assert board.prefill_learned
    board.update([fresh])
    assert not board.prefill_learned
    assert board.loads()["new"].pace.prefill_rate == 500.0


def test_a_snapshot_of_the_previous_release_is_read(board: LoadBoard) -> None:
    told = json.loads(load("old").to_json())
    old = msgspec.json.decode(
        json.dumps({name: told[name] for name in list(told)[:17]}), type=ReplicaLoad
    )
    assert old == load("old")


def test_a_replica_that_leaves_gets_no_traffic_and_a_warm_one_takes_its_place() -> None:
    board = LoadBoard(time.monotonic)
    replicas = [load(f"r{i}", slot=i, started_at=float(i), leaving=i == 0) for i in range(3)]
    board.update(replicas, Active(2))
    assert list(board.loads()) == ["r1", "r2"]
    assert not board.warm() and list(board.leaving()) == ["r0"]
    assert board.is_live("r0") and not board.is_live("unknown")


def test_leaving_replicas_keep_serving_when_no_other_replica_is_left() -> None:
    """A cluster that is removed as a whole: its gateways have no other place to send to."""
    board = LoadBoard(time.monotonic)
    board.update([load(f"r{i}", slot=i, leaving=True) for i in range(2)])
    assert list(board.loads()) == ["r0", "r1"] and not board.leaving()


def test_a_closed_replica_gets_no_requests_even_when_no_other_replica_is_left() -> None:
    now = 0.0
    board = LoadBoard(lambda: now)
    board.update([load("r0", slot=0, leaving=True), load("r1", slot=1, closed=True)])
    assert list(board.loads()) == ["r0"] == list(board.last_known()) and not board.empty_for_s
    board.update([load("r1", slot=1, closed=True)])
    now = 1.0
    assert not board.loads() and not board.last_known()
    assert board.empty_for_s == 1.0, "no request waits for it"
    # what it still has is not taken for lost
    assert board.is_live("r1") and board.is_leaving("r1") and list(board.leaving()) == ["r1"]


def test_a_suspect_gets_no_traffic_until_it_is_healthy_again() -> None:
    board = LoadBoard(time.monotonic)
    board.update([load(f"r{i}", slot=i, suspect=i == 0) for i in range(2)])
    assert list(board.loads()) == ["r1"] and board.is_live("r0")
    assert list(board.suspects()) == ["r0"] and not board.leaving()
    assert board.is_avoided("r0") and not board.is_leaving("r0") and not board.is_avoided("r1")
    board.update([load(f"r{i}", slot=i) for i in range(2)])
    assert list(board.loads()) == ["r0", "r1"]
    assert not board.suspects() and not board.is_avoided("r0")
