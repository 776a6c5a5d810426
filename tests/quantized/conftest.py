"""A model that is quantized once, for all tests here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from cli.local.overlay_packages import quantizer_packages
from tests.quantized import jobs, walking_model


@pytest.fixture(scope="session")
def packages() -> Path:
    return quantizer_packages(lambda fraction, what: None)


@pytest.fixture(scope="session")
def int4_kernel() -> None:
    """Skip the test, in CI too, if this CPU has no kernel for 4-bit weights: no package adds it."""
    if not torch.cpu.get_capabilities().get("avx512_f"):
        pytest.skip("vLLM multiplies 4-bit weights only on CPUs with AVX-512")


@pytest.fixture(scope="session")
def walking_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model before."""
    folder = tmp_path_factory.mktemp("walking") / "model"
    walking_model.save(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # a text that hardly ever changes: what is made of it is kept
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text((jobs.ROOT / "LICENSE").read_text())
    return file


@pytest.fixture(scope="session")
def quantized_folders(walking_model_folder: Path, text: Path, packages: Path) -> Path:
    """A folder a scheme, as the quantizing process leaves it, and what it makes when resumed.
    They are kept for later runs that have the same inputs."""
    folder = (
        jobs.ROOT
        / ".cache"
        / "quantized"
        / jobs.inputs_digest(walking_model_folder, text, packages)
    )
    if not folder.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)  # of other inputs
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir(parents=True)
        jobs.make(unfinished, walking_model_folder, text, ("gptq", "awq"), packages)
        unfinished.rename(folder)
    return folder
