"""Calibration text: what is read, and what is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Problem
from weights.quantize.calibration_data import LEAST_TOKENS, Sample, read_samples, token_windows


def jsonl(folder: Path, *lines: object) -> Path:
    file = folder / "text.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return file


def length(sample: Sample) -> list[int]:
    return list(range(len(sample)))


def test_every_kind_of_line_is_read(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    file = jsonl(
        tmp_path, {"text": "one"}, {"prompt": "two"}, {"messages": chat}, {"turns": ["x", "y"]}
    )
    assert read_samples(file) == ["one", "two", chat, [{"role": "user", "content": "x"}]]


def test_a_text_file_is_one_sample(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one\n\ntwo")
    assert read_samples(file) == ["one\n\ntwo"]


@pytest.mark.parametrize(
    "line",
    [
        {"question": "a"},
        {"text": 3},
        {"text": " "},
        {"messages": []},
        {"messages": ["a"]},
        [1],
        "a",
    ],
)
def test_a_line_without_text_is_an_error_with_its_number(tmp_path: Path, line: object) -> None:
    file = jsonl(tmp_path, {"text": "good"}, line)
    with pytest.raises(Problem, match=r"text\.jsonl:2 has no text in any of the known keys"):
        read_samples(file)


def test_a_broken_line_is_an_error_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text('{"text": "a"}\n{"text":\n')
    with pytest.raises(Problem, match=r"text\.jsonl:2 is not JSON"):
        read_samples(file)


@pytest.mark.parametrize("name", ["text.txt", "text.jsonl"])
def test_an_empty_file_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n")
    with pytest.raises(Problem, match="is empty"):
        read_samples(tmp_path / name)


def test_a_missing_or_binary_calibration_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="cannot be read"):
        read_samples(tmp_path / "none.txt")
    (tmp_path / "image.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Problem, match=r"not UTF-8 text \(byte 0\)"):
        read_samples(tmp_path / "image.txt")
    (tmp_path / "table.csv").write_text("a,b")
    with pytest.raises(Problem, match="unknown ending"):
        read_samples(tmp_path / "table.csv")


def test_too_little_text_is_an_error_with_the_needed_amount() -> None:
    with pytest.raises(Problem, match=r"has 5 tokens, but needs at least 256.* 1024 tokens"):
        token_windows(["hello"], length, 2, 512)


@given(st.lists(st.integers(0, 900), min_size=1, max_size=8), st.integers(1, 9))
def test_windows_are_equally_long_and_do_not_overlap(lengths: list[int], count: int) -> None:
    numbers = iter(range(10_000))
    stream = {str(index): [next(numbers) for _ in range(n)] for index, n in enumerate(lengths)}
    if sum(lengths) < LEAST_TOKENS:
        return
    windows = token_windows(list(stream), lambda sample: stream[str(sample)], count, 128)
    assert len(windows) == min(count, sum(lengths) // 128)
    assert {len(window) for window in windows} == {128}
    tokens = [token for window in windows for token in window]
    assert tokens == sorted(set(tokens))


def test_windows_are_spread_over_the_whole_text() -> None:
    windows = token_windows(["x" * 10_000], length, 4, 100)
    assert [window[0] for window in windows] == [0, 2500, 5000, 7500]
