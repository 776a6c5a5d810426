"""The tiny models, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runner_v2 import tiny_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_models.make(folder)
    return folder
