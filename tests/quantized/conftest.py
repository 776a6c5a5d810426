"""A model that is quantized once, for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.local.overlay_packages import quantizer_packages
from tests.quantized import jobs, walking_model


@pytest.fixture(scope="session")
def packages() -> Path:
    return quantizer_packages(lambda fraction, what: None)


@pytest.fixture(scope="session")
def walking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model before."""
    folder = tmp_path_factory.mktemp("walking") / "model"
    walking_model.save(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text((jobs.ROOT / "README.md").read_text())
    return file


@pytest.fixture(scope="session")
def made(
    walking: Path, text: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder a scheme, as the quantizing process leaves it, and what it makes when resumed."""
    folder = tmp_path_factory.mktemp("made")
    jobs.make(folder, walking, text, ("gptq", "awq"), packages)
    return folder
