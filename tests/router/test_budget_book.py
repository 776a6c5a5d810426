"""What a gateway that was killed leaves to the next at its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from router import budget_book
from router.budget_book import HISTORY, Book, books_of

NOW = 1000.5


def granted(book: Book, scope: str = "red") -> tuple[list[int], list[int]]:
    return book.scope(scope).sums(0)


def test_the_next_process_at_a_place_continues_the_book(tmp_path: Path) -> None:
    first = Book(tmp_path, NOW, 1.0)
    first.grant("red", 1000, 1, 50, by_share=False)
    first.grant("red", 1000, 0, -20, by_share=False)
    first.grant("red", 1001, 1, 7, by_share=True)
    first.beat(heard_by=1001.0, heard_from=1000.75, share=0.125, counted=8)
    beside = Book(tmp_path, NOW, 1.0)
    assert beside.name != first.name and granted(beside) == ([0, 0], [0, 0])
    first.close(whole=False)
    for _ in range(2):  # and who follows that one
        after = Book(tmp_path, NOW + 5, 1.0)
        assert (after.name, after.id, after.began) == (first.name, first.id, first.began)
        assert granted(after) == ([1, 30], [1, 7]) and after.beats == first.beats
        after.close(whole=False)
    after = Book(tmp_path, NOW + 5, 1.0)
    after.all_seen()
    after.close(whole=False)
    assert granted(Book(tmp_path, NOW + 5, 1.0)) == ([2, 37], [0, 0])


@pytest.mark.parametrize("by_share", [False, True])
def test_a_refund_that_arrives_twice_counts_once(tmp_path: Path, by_share: bool) -> None:
    book = Book(tmp_path, NOW, 1.0)
    book.grant("red", 1000, 1, 50, by_share=by_share)
    for _ in range(2):
        book.grant("red", 1000, -1, -50, by_share=by_share)
    book.grant("red", 1000, 1, 30, by_share=by_share)
    expected = ([0, 0], [1, 30]) if by_share else ([1, 30], [0, 0])
    assert granted(book) == expected
    book.close(whole=False)
    assert granted(Book(tmp_path, NOW, 1.0)) == expected


def test_a_refund_of_a_grant_that_the_book_does_not_have_changes_nothing(tmp_path: Path) -> None:
    book = Book(tmp_path, NOW, 1.0)
    book.grant("red", 1000, -1, -50, by_share=False)
    book.grant("red", 1000, 1, 30, by_share=False)
    assert granted(book) == ([1, 30], [0, 0])


def test_grants_of_a_killed_process_are_in_its_book(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from router.budget_book import Book\n"
        "book = Book(Path(sys.argv[1]), 1000.5, 1.0)\n"
        "book.grant('red', 1000, 1, 50, by_share=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert granted(Book(tmp_path, NOW, 1.0)) == ([1, 50], [0, 0])


def test_half_a_line_is_of_what_was_not_granted(tmp_path: Path) -> None:
    first = Book(tmp_path, NOW, 1.0)
    first.grant("red", 1000, 1, 50, by_share=False)
    first.close(whole=False)
    with (tmp_path / "0.new").open("a") as file:
        file.write('["s", "red", 1000, 1, 5')
    second = Book(tmp_path, NOW, 1.0)
    second.grant("red", 1000, 1, 1, by_share=False)
    second.close(whole=False)
    assert granted(Book(tmp_path, NOW, 1.0)) == ([2, 51], [0, 0])


def test_a_book_holds_two_windows_however_long_it_is_kept(tmp_path: Path) -> None:
    book = Book(tmp_path, NOW, 1.0)
    for second in range(1000, 1000 + 5 * HISTORY):
        book.forget_old(float(second))
        book.grant("red", second, 1, 1, by_share=False)
    known = len(book.scope("red").buckets)
    assert HISTORY <= known <= HISTORY + 1
    lines = sum(len(file.read_text().splitlines()) for file in tmp_path.glob("0.*"))
    assert lines < 3 * HISTORY
    book.close(whole=False)
    after = Book(tmp_path, 1000.0 + 5 * HISTORY, 1.0)
    after.forget_old(1000.0 + 5 * HISTORY)
    assert granted(after)[0][0] == HISTORY
    assert after.began == NOW


def test_a_book_of_another_boot_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times are of another clock."""
    first = Book(tmp_path, NOW, 1.0)
    first.grant("red", 1000, 1, 50, by_share=False)
    first.close(whole=False)
    (boot := tmp_path / "boot").write_text("another")
    monkeypatch.setattr(budget_book, "_BOOT", boot)
    second = Book(tmp_path, NOW, 1.0)
    assert second.id != first.id and granted(second) == ([0, 0], [0, 0])


def test_a_book_that_cannot_be_written_is_not_left_half(tmp_path: Path) -> None:
    first = Book(tmp_path, NOW, 1.0)
    first.grant("red", 1000, 1, 50, by_share=False)
    full = os.open("/dev/full", os.O_WRONLY)
    assert first._file is not None
    os.dup2(full, first._file)
    os.close(full)
    first.grant("red", 1001, 1, 50, by_share=False)
    assert granted(first) == ([2, 100], [0, 0])
    first.close(whole=False)
    second = Book(tmp_path, NOW, 1.0)
    assert (second.name, granted(second)) == (first.name, ([0, 0], [0, 0]))
    assert second.id != first.id


def test_a_gateway_that_leaves_for_good_removes_its_book(tmp_path: Path) -> None:
    book = Book(folder := tmp_path / "fleet", NOW, 1.0)
    assert book._file is None  # there is no such folder: it goes on without
    folder.mkdir()
    book = Book(folder, NOW, 1.0)
    book.grant("red", 1000, 1, 50, by_share=False)
    book.close(whole=True)
    assert not folder.exists()


def test_each_fleet_and_each_redis_has_separate_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_book, "_MEMORY", tmp_path)
    one = books_of("a", "redis://:secret@host:1/0")
    assert one is not None and one.is_relative_to(tmp_path)
    assert one == books_of("a", "redis://:other@host:1/0")
    assert one != books_of("a", "redis://host:2/0") and one != books_of("b", "redis://host:1/0")
    os.utime(one, (0, 0))
    assert books_of("b", "redis://host:1/0") is not None
    assert not one.exists()
