"""What is quantized is kept for later runs, until one of its inputs changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quantized.jobs import inputs_digest


def digest_of(folder: Path, weights: bytes, text: str, packages: str) -> str:
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(weights)
    (folder / "text.txt").write_text(text)
    return inputs_digest(model, folder / "text.txt", Path(packages))


@pytest.mark.parametrize(
    ("weights", "text", "packages"),
    [(b"2", "text", "one"), (b"1", "texts", "one"), (b"1", "text", "other")],
)
def test_a_different_model_text_or_package_changes_the_input_digest(
    tmp_path: Path, weights: bytes, text: str, packages: str
) -> None:
    first = digest_of(tmp_path / "first", b"1", "text", "one")
    assert first == digest_of(tmp_path / "same", b"1", "text", "one")
    assert first != digest_of(tmp_path / "changed", weights, text, packages)
