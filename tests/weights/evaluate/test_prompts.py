"""Files of prompts and texts."""

from pathlib import Path

import pytest

from common.errors import Problem
from weights.evaluate.prompts import read_prompts, read_texts


def written(folder: Path, name: str, content: str) -> Path:
    file = folder / name
    file.write_text(content, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "line",
    [
        '{"turns": ["Hi", "And?"], "category": "writing"}',
        '{"messages": [{"role": "user", "content": "Hi"}]}',
        '{"prompt": "Hi"}',
        '{"text": "Hi"}',
    ],
)
def test_every_kind_of_line_is_a_prompt(tmp_path: Path, line: str) -> None:
    file = written(tmp_path, "p.jsonl", f"{line}\n\n{line}\n")
    assert read_prompts(file) == [[{"role": "user", "content": "Hi"}]] * 2


def test_a_conversation_keeps_its_messages(tmp_path: Path) -> None:
    messages = '[{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]'
    file = written(tmp_path, "p.jsonl", f'{{"messages": {messages}}}\n')
    assert [message["role"] for message in read_prompts(file)[0]] == ["system", "user"]


def test_plain_text_has_one_prompt_per_line_and_is_one_document(tmp_path: Path) -> None:
    file = written(tmp_path, "p.txt", "One\n\n  Two  \n")
    assert [prompt[0]["content"] for prompt in read_prompts(file)] == ["One", "Two"]
    assert read_texts(file) == ["One\n\n  Two  \n"]


def test_documents_stay_apart_from_conversations(tmp_path: Path) -> None:
    file = written(tmp_path, "p.jsonl", '{"text": "A book"}\n{"prompt": "Hi"}\n')
    assert read_texts(file) == ["A book", [{"role": "user", "content": "Hi"}]]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("p.txt", " \n", "p.txt is empty"),
        ("p.jsonl", '{"prompt": "a"}\nHi\n', "p.jsonl:2 is not JSON"),
        ("p.jsonl", '{"question": "a"}\n', r"p.jsonl:1 has no text \(its keys: question\)"),
        ("p.jsonl", "[1]\n", r"p.jsonl:1 has no text \(its keys: list\)"),
        ("p.jsonl", '{"turns": []}\n', "p.jsonl:1 has no text"),
        ("p.jsonl", '{"messages": [{"role": "user"}]}\n', "p.jsonl:1 has no text"),
        ("p.jsonl", '{"prompt": "  "}\n', "p.jsonl:1 has no text"),
    ],
)
def test_an_error_is_reported_with_its_line(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    with pytest.raises(Problem, match=complaint):
        read_prompts(written(tmp_path, name, content))


def test_a_missing_or_binary_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="cannot be read: no such file"):
        read_texts(tmp_path / "none.txt")
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Problem, match="not UTF-8"):
        read_prompts(tmp_path / "p.txt")
