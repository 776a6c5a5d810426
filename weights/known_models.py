"""Well-known models that ship with Antefix: their config.json and licence, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class KnownModel:
    """One entry of models.yaml; `licence` and `gated` are None where they are not recorded.

    `gated`: the Hub serves the model only to accounts that accepted its licence.
    """

    config: dict[str, Any]
    licence: str | None = None
    gated: bool | None = None


@cache
def _models() -> dict[str, KnownModel]:
    text = (files("weights") / "models.yaml").read_text(encoding="utf-8")
    return {name: KnownModel(**entry) for name, entry in yaml.safe_load(text).items()}


def known_models() -> list[str]:
    """The Hugging Face ids, sorted."""
    return sorted(_models())


def known_model(model: str) -> KnownModel | None:
    """The model of a Hugging Face id; None where it does not ship."""
    return _models().get(model)


def known_config(model: str) -> dict[str, Any] | None:
    """The config of a Hugging Face id; None where it does not ship."""
    known = known_model(model)
    return known.config if known else None
