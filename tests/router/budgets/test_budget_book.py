"""A gateway's grants, and what it leaves to the next process at its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from router.budgets import budget_book
from router.budgets.budget_book import HISTORY, Beats, Book, GatewayPlace, Scope, places_of
from router.budgets.budget_scripts import WINDOW

NOW = 1000.5


def granted(book: Book, scope: str = "red") -> tuple[list[int], list[int]]:
    return book.scope(scope).sums(0)


def at_a_place(folder: Path, now: float = NOW) -> GatewayPlace:
    return GatewayPlace(folder, now)


def test_the_next_process_with_the_same_place_continues_its_grants(tmp_path: Path) -> None:
    first = at_a_place(tmp_path)
    first.beat(heard_by=1001.0, heard_from=1000.75, share=0.125, counted=8)
    beside = at_a_place(tmp_path, NOW + 5)
    assert beside.name != first.name
    assert beside.beats == Beats()
    first.close(for_good=False)
    for _ in range(2):  # and the one that follows it
        after = at_a_place(tmp_path, NOW + 5)
        assert (after.name, after.beats) == (first.name, first.beats)
        after.close(for_good=False)


def test_a_killed_process_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from router.budgets.budget_book import GatewayPlace\n"
        "place = GatewayPlace(Path(sys.argv[1]), 1000.5, 'gateway')\n"
        "place.beat(share=0.25, heard_from=1000.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    after = at_a_place(tmp_path)
    assert (after.name, after.beats.share) == ("gateway", 0.25)


def test_a_shorter_record_overwrites_a_longer_one_completely(tmp_path: Path) -> None:
    place = at_a_place(tmp_path)
    place.beat(heard_by=123456789.123456, heard_from=123.456789, share=1 / 3, counted=123)
    place.beat(heard_by=1.0, heard_from=1.0, share=1.0, counted=1)
    place.close(for_good=False)
    assert at_a_place(tmp_path).beats == Beats(1.0, 1.0, 1.0, 1)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '["boot", "name", {"no": 1}]'])
def test_a_file_that_no_gateway_has_written_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.lock").write_text(text)
    assert at_a_place(tmp_path).beats == Beats()


def test_a_place_of_another_boot_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times are of another clock."""
    first = at_a_place(tmp_path)
    first.beat(share=0.5, heard_from=NOW)
    first.close(for_good=False)
    (boot := tmp_path / "boot").write_text("another")
    monkeypatch.setattr(budget_book, "_BOOT", boot)
    second = at_a_place(tmp_path)
    assert second.name != first.name
    assert second.beats == Beats()


def test_a_place_with_times_in_the_future_is_not_continued(tmp_path: Path) -> None:
    """Its times are of another clock, too: one that was set back, or of another container."""
    first = at_a_place(tmp_path)
    first.beat(share=0.5, heard_from=NOW + 100)
    first.close(for_good=False)
    assert at_a_place(tmp_path).beats == Beats()


def test_a_place_that_cannot_be_written_is_removed(tmp_path: Path) -> None:
    """A successor would take what it contains for the last contact with Redis."""
    first = at_a_place(tmp_path)
    full = os.open("/dev/full", os.O_RDWR)
    assert first._lock is not None
    os.dup2(full, first._lock)
    os.close(full)
    first.beat(share=0.5)
    assert first.beats.share == 0.5
    assert not list(tmp_path.iterdir()) if tmp_path.exists() else True


def test_a_gateway_that_leaves_for_good_removes_its_place(tmp_path: Path) -> None:
    place = at_a_place(folder := tmp_path / "fleet")
    place.beat(share=0.5)  # there is no such folder: it continues without
    folder.mkdir()
    at_a_place(folder).close(for_good=True)
    assert not folder.exists()


def test_a_refund_that_arrives_twice_counts_once() -> None:
    for by_share in (False, True):
        book = Book(1.0)
        book.grant("red", 1000, 1, 50, by_share=by_share)
        for _ in range(2):
            book.grant("red", 1000, -1, -50, by_share=by_share)
        book.grant("red", 1000, 1, 30, by_share=by_share)
        assert granted(book) == (([0, 0], [1, 30]) if by_share else ([1, 30], [0, 0]))


def test_a_refund_of_a_grant_that_the_book_does_not_have_changes_nothing() -> None:
    book = Book(1.0)
    book.grant("red", 1000, -1, -50, by_share=False)
    book.grant("red", 1000, 1, 30, by_share=False)
    assert granted(book) == ([1, 30], [0, 0])


def test_grants_by_share_count_as_reported_once_redis_has_them() -> None:
    book = Book(1.0)
    book.grant("red", 1000, 1, 30, by_share=False)
    book.grant("red", 1001, 1, 7, by_share=True)
    assert granted(book) == ([1, 30], [1, 7])
    book.all_seen()
    assert granted(book) == ([2, 37], [0, 0])


def spending(*buckets: tuple[int, int, bool]) -> Scope:
    """A scope with one request and these tokens in each bucket, granted by share or by Redis."""
    book = Book(1.0)
    for at, tokens, by_share in buckets:
        book.grant("red", at, 1, tokens, by_share=by_share)
    return book.scope("red")


def test_sums_cover_a_bucket_and_all_later_ones() -> None:
    scope = spending((1000, 5, False), (1001, 7, True), (1002, 9, False))
    assert scope.sums(1000) == ([2, 14], [1, 7])
    assert scope.sums(1001) == ([1, 9], [1, 7])
    assert scope.sums(1003) == ([0, 0], [0, 0])


@pytest.mark.parametrize(
    ("since", "place", "count", "at"),
    [
        (1000, 1, 5, 1000 + 61),  # as soon as the oldest leaves the window
        (1000, 1, 6, 1001 + 61),
        (1000, 1, 12, 1001 + 61),
        (1000, 1, 13, 1002 + 61),
        (1001, 1, 7, 1001 + 61),
        (1001, 1, 8, 1002 + 61),
        (1000, 0, 3, 1002 + 61),
        (1000, 1, 22, 1000 + 120),  # more than there is
    ],
)
def test_a_grant_is_released_once_it_has_left_the_window(
    since: int, place: int, count: int, at: int
) -> None:
    scope = spending((1000, 5, False), (1001, 7, True), (1002, 9, False))
    assert scope.frees_at(since, place, count, window=60) == at


@pytest.mark.parametrize(
    ("now", "age_s"), [(1001.0, 0.0), (1002.0, 0.0), (1010.0, 8.0), (1123.9, 121.9)]
)
def test_each_bucket_is_reported_to_redis_with_its_minimum_age(now: float, age_s: float) -> None:
    book = Book(2.0)
    book.grant("red", 500, 1, 50, by_share=False)
    book.grant("red", 500, 1, 7, by_share=True)
    [[scope, age, *spent]] = book.told(now)
    assert (scope, spent) == ("red", [1, 50, 1, 7])
    assert age == pytest.approx(age_s)


def test_expired_grants_are_not_reported_to_redis() -> None:
    book = Book(2.0)
    book.grant("red", 500, 1, 50, by_share=False)
    assert book.told(2.0 * (500 + WINDOW)) == []


def test_old_buckets_are_forgotten_in_buckets_of_any_length() -> None:
    book = Book(2.0)
    book.grant("red", 500, 1, 50, by_share=False)
    book.scope("unused")  # has nothing to forget
    book.forget_old(2.0 * (500 + HISTORY))
    assert book.scope("red").buckets.keys() == {500}
    book.forget_old(2.0 * (501 + HISTORY))
    assert not book.scope("red").buckets


def test_a_scope_is_forgotten_after_two_windows_without_use() -> None:
    book = Book(1.0)
    book.grant("red", 1000, 1, 50, by_share=False)
    book.grant("blue", 1001, 1, 50, by_share=False)
    assert book.idle(1000 + HISTORY) == []
    assert book.idle(1001 + HISTORY) == ["red"]
    assert book.scopes.keys() == {"blue"}


def test_a_scope_is_remembered_while_one_of_its_requests_runs() -> None:
    """Its lease counts for the limit of concurrent requests, however long it runs."""
    book = Book(1.0)
    book.grant("red", 1000, 1, 50, by_share=False)
    book.scope("red").leases.add("lease")
    assert book.idle(1000 + 9 * HISTORY) == []
    assert book.scope("red").leases == {"lease"}
    book.scope("red").leases.discard("lease")
    assert book.idle(1000 + 9 * HISTORY) == ["red"]


def test_each_fleet_and_each_redis_has_separate_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_book, "_MEMORY", tmp_path)
    one = places_of("a", "redis://:secret@host:1/0")
    assert one is not None and one.is_relative_to(tmp_path)
    assert one == places_of("a", "redis://:other@host:1/0")
    assert one != places_of("a", "redis://host:2/0") and one != places_of("b", "redis://host:1/0")
    os.utime(one, (0, 0))
    assert places_of("b", "redis://host:1/0") is not None
    assert not one.exists()
