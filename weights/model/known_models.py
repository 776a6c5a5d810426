"""Built-in well-known models: their config.json and license, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class KnownModel:
    """One entry of models.yaml; `license` and `gated` are None if unknown.

    `gated`: the Hub serves the model only to accounts that accepted its license.
    """

    config: dict[str, Any]
    license: str | None = None
    gated: bool | None = None


@cache
def _models() -> dict[str, KnownModel]:
    text = (files("weights") / "models.yaml").read_text(encoding="utf-8")
    return {name: KnownModel(**entry) for name, entry in yaml.safe_load(text).items()}


def known_models() -> list[str]:
    """Return the Hugging Face ids, sorted."""
    return sorted(_models())


def known_model(model: str) -> KnownModel | None:
    """Return the model of a Hugging Face id; None if it is not built in."""
    return _models().get(model)


def known_config(model: str) -> dict[str, Any] | None:
    """Return the config of a Hugging Face id; None if it is not built in."""
    known = known_model(model)
    return known.config if known else None
