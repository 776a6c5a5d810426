"""What a request asks of admission: its priority class, and whether another model may answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from autoscaling.overflow import OverflowWish
from autoscaling.slo import PriorityClass
from deployments.gateway.errors import ApiError

PRIORITY_HEADER = "x-antefix-priority"
OVERFLOW_HEADER = "x-antefix-overflow"
# https://platform.openai.com/docs/guides/flex-processing; all other tiers leave it to the key.
_CLASS_OF_TIER: Mapping[str, PriorityClass] = {"flex": "batch", "priority": "interactive"}


@dataclass(frozen=True)
class Wishes:
    """`overflow` only: by the overflow pool, or not at all."""

    priority: PriorityClass
    overflow: OverflowWish


def wishes_of(
    headers: Mapping[str, str], fields: Mapping[str, Any], right: PriorityClass
) -> Wishes:
    """What the header asks for, else the body's `service_tier`, else what the key may have.

    `right`: the highest class of the key. Raises ApiError: 400 for a word that is none, 403 for a
    class beyond the key's right.
    """
    tier = fields.get("service_tier")
    of_tier = _CLASS_OF_TIER.get(tier) if isinstance(tier, str) else None
    asked = _word_of(headers, PRIORITY_HEADER, get_args(PriorityClass))
    priority = cast(PriorityClass, asked or of_tier or right)
    if right == "batch" and priority == "interactive":
        where = PRIORITY_HEADER if asked else "service_tier"
        message = (
            "this key's requests have the class 'batch'; leave the class out, or ask the operators"
            f" for another right of this key (asked for in {where})"
        )
        raise ApiError(403, message, code="priority_not_allowed", param=where)
    overflow = _word_of(headers, OVERFLOW_HEADER, get_args(OverflowWish))
    return Wishes(priority, cast(OverflowWish, overflow or "allow"))


def _word_of(headers: Mapping[str, str], name: str, words: tuple[str, ...]) -> str | None:
    word = headers.get(name)
    if word is not None and word not in words:
        message = f"{name} is {word[:100]!r}; it must be one of {', '.join(words)}"
        raise ApiError(400, message, code="invalid_header", param=name)
    return word
