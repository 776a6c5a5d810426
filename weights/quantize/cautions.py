"""Cautions: models that lose more in 4 bits than the perplexity shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

FEW_PARAMETERS = 1e9
# Words in an id of models that lose more: in reasoning, digits and syntax, every wrong token
# matters.
_DELICATE = re.compile(r"distill|math|code|(?<![a-z0-9])r1(?![a-z0-9])", re.IGNORECASE)


def four_bit_cautions(model: str, parameters: int) -> Iterator[str]:
    """Yield what to check before serving 4 bits, for a model of that name and number of parameters.

    The loss of the embedded model was measured (docs/benchmarks/weights.md).
    """
    if parameters < FEW_PARAMETERS:
        yield (
            f"4 bits hurt small models most, and this one has {parameters / 1e6:,.0f} million"
            " parameters: the embedded one of 135 million loses 14% of perplexity by awq;"
            " w8a16 hardly loses any"
        )
    if _DELICATE.search(model.rstrip("/").rpartition("/")[2]):
        yield (
            "models for maths, code and reasoning lose more in 4 bits than perplexity shows:"
            " evaluate them on your tasks"
        )
