"""Configs of well-known models that ship with Antefix: what config.json says, without a network."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def _configs() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(
        (files("weights") / "models.yaml").read_text(encoding="utf-8")
    )
    return loaded


def known_models() -> list[str]:
    return sorted(_configs())


def known_config(model: str) -> dict[str, Any] | None:
    """The config of a Hugging Face id, None where it does not ship."""
    return _configs().get(model)
