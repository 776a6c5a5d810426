"""Prefixes with images are pulled, and read from the disk."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine_job import told_by

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def told(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    asked = {"folder": str(tmp_path_factory.mktemp("images"))}
    told: dict[str, Any] = told_by(warm_python, "tests.tiers.images", asked, within_s=500)
    return told


@pytest.mark.parametrize(("step", "color"), [("pulled", "red"), ("read", "blue")])
def test_a_prompt_with_an_image_is_not_computed_again(
    told: dict[str, Any], step: str, color: str
) -> None:
    answer = told["steps"][step]
    assert answer["text"] == told["computed"][color]["text"]
    assert answer["reused"] > 200


def test_an_engine_has_read_files(told: dict[str, Any]) -> None:
    assert told["disk_load_rate"] > 0


def test_answers_depend_on_the_image(told: dict[str, Any]) -> None:
    assert len({answer["text"] for answer in told["computed"].values()}) == 3


def test_the_same_text_after_another_image_is_not_pulled(told: dict[str, Any]) -> None:
    assert told["steps"]["unknown"]["reused"] == 0
    assert all(answer["reused"] == 0 for answer in told["computed"].values())
