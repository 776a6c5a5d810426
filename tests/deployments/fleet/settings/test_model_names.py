"""Routes that cannot work are refused, with the remedy."""

from typing import Any

import pytest
from pydantic import ValidationError

from deployments.fleet.fleet import Fleet


def fleet(**models: Any) -> Fleet:
    adapters = {"lora_modules": [{"name": "tuned", "path": "/tuned"}]}
    pools = {
        "chat": {"model": "embedded", "served_model_name": "small", "engine_args": adapters},
        "next": {"model": "embedded", "served_model_name": "small-2"},
    }
    return Fleet.model_validate({"name": "test", "pools": pools, "models": models})


@pytest.mark.parametrize(
    "models",
    [
        {"assistant": {"pools": {"chat": 1}}},
        {"assistant": {"pools": {"chat": 95, "next": 5}, "aliases": ["gpt-5", "org/model"]}},
        # under the name that clients know already
        {"small": {"pools": {"chat": 95.5, "next": 4.5}}},
        {"assistant": {"pools": {"chat": 1, "next": 0}}},
        {"assistant": {"pools": {"chat": 1}, "mirror": {"pool": "next", "percent": 0.5}}},
        {"assistant": {"adapters": {"tuned": 9, "small": 1}, "aliases": ["gpt-5"]}},
        {"tuned": {"adapters": {"tuned": 1}, "canary": {"adapter": "small"}}},
    ],
)
def test_a_route_to_existing_pools_is_accepted(models: Any) -> None:
    assert fleet(**models).models.keys() == models.keys()


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"assistant": {"pools": {"chatt": 1}}}, ("no pool has this name", "chat")),
        ({"assistant": {"pools": {"chat": 0, "next": 0}}}, ("'assistant' sum to 0", "above 0")),
        ({"assistant": {"pools": {"chat": -1}}}, ("greater than or equal to 0",)),
        ({"assistant": {"pools": {}}}, ("neither `pools` nor `adapters`",)),
        ({"assistant": {}}, ("neither", "one of the two")),
        (
            {"assistant": {"pools": {"chat": 1}, "adapters": {"tuned": 1}}},
            ("both `pools` and `adapters`",),
        ),
        ({"assistant": {"adapters": {"tuned": 0}}}, ("'assistant' sum to 0", "above 0")),
        ({"assistant": {"adapters": {"tuned": -1}}}, ("greater than or equal to 0",)),
        ({"assistant": {"adapters": {"tunned": 1}}}, ("no pool serves 'tunned'", "mean tuned")),
        ({"assistant": {"adapters": {"other": 1}}}, ("none accepts adapters", "its pool")),
        ({"assistant": {"adapters": {"no name!": 1}}}, ("not a model name",)),
        ({"small-2": {"adapters": {"tuned": 1}}}, ("shadows a model that pools.next serves",)),
        (
            {"assistant": {"adapters": {"tuned": 1}, "canary": {"pool": "next"}}},
            ("is an adapter", "Name it in `adapter`"),
        ),
        (
            {"assistant": {"pools": {"chat": 1}, "canary": {"adapter": "tuned"}}},
            ("is a pool", "Name it in `pool`"),
        ),
        (
            {"assistant": {"adapters": {"tuned": 1}, "canary": {"adapter": "tuned"}}},
            ("models.assistant.adapters has this adapter too",),
        ),
        (
            {"assistant": {"adapters": {"tuned": 1}, "canary": {"adapter": "tunde"}}},
            ("no pool serves 'tunde'", "mean tuned"),
        ),
        (
            {"assistant": {"adapters": {"tuned": 1}, "mirror": {"pool": "next"}}},
            ("requests for adapters are not copied",),
        ),
        (
            {"assistant": {"adapters": {"tuned": 1}, "select": "price"}},
            ("adapters need select: weight",),
        ),
        ({"small": {"pools": {"next": 1}}}, ("shadows a model that pools.chat serves", "lead to")),
        ({"tuned": {"pools": {"next": 1}}}, ("shadows",)),
        ({"a": {"pools": {"chat": 1}, "aliases": ["small-2"]}}, ("shadows",)),
        # an alias is another name, even for its own pool
        ({"a": {"pools": {"chat": 1}, "aliases": ["small"]}}, ("shadows",)),
        ({"a": {"pools": {"chat": 1}, "aliases": ["a"]}}, ("models.a has this name too",)),
        (
            {"a": {"pools": {"chat": 1}}, "b": {"pools": {"next": 1}, "aliases": ["a"]}},
            ("models.a has this name too", "another name"),
        ),
        ({"no name!": {"pools": {"chat": 1}}}, ("not a model name",)),
        ({"a": {"pools": {"chat": 1}, "canary": {"pool": "nxt"}}}, ("no pool has", "next")),
        (
            {"a": {"pools": {"chat": 1, "next": 0}, "canary": {"pool": "next"}}},
            ("models.a.pools has this pool too", "one of the two"),
        ),
        (
            {"a": {"pools": {"chat": 1}, "canary": {"pool": "next", "steps": [5, 5]}}},
            ("steps must rise",),
        ),
        ({"a": {"pools": {"chat": 1}, "mirror": {"pool": "nxt"}}}, ("no pool has", "next")),
        (
            {"a": {"pools": {"chat": 1}, "mirror": {"pool": "chat"}}},
            ("models.a.pools has this pool too", "another pool"),
        ),
        (
            {"a": {"pools": {"chat": 1}, "mirror": {"pool": "next"}}, "b": {"pools": {"next": 1}}},
            ("models.b.pools has this pool too",),
        ),
        (
            {
                "a": {
                    "pools": {"chat": 1},
                    "canary": {"pool": "next"},
                    "mirror": {"pool": "next"},
                }
            },
            ("it is the canary of models.a",),
        ),
        ({"a": {"pools": {"chat": 1}, "mirror": {"pool": "next", "percent": 0}}}, ("percent",)),
        (
            {"a": {"pools": {"chat": 1, "next": 0}, "select": "price"}},
            ("pools.chat has no price", "Set pools.chat.price"),
        ),
        (
            {"a": {"pools": {"chat": 1}, "select": "price", "canary": {"pool": "next"}}},
            ("a canary needs select: weight",),
        ),
        ({"a": {"pools": {"chat": 1}, "select": "cost"}}, ("select",)),
        ({"a": {"pools": {"chat": 1}, "mirror": {"pool": "next", "percent": 101}}}, ("percent",)),
        ({"a": {"pools": {"chat": 1}, "weights": 1}}, ("weights",)),
    ],
)
def test_a_route_that_cannot_work_is_refused(models: Any, said: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        fleet(**models)
    for words in said:
        assert words in str(refused.value)


def test_a_canary_does_not_overflow_into_a_pool_of_its_model() -> None:
    pools = {
        "chat": {"model": "embedded", "served_model_name": "small"},
        "next": {
            "model": "embedded",
            "served_model_name": "small-2",
            "slo": {"interactive": {"ttft_s": 1}},
            "overflow": {"to": "chat"},
        },
    }
    models = {"a": {"pools": {"chat": 1}, "canary": {"pool": "next"}}}
    with pytest.raises(ValidationError, match="hides that it is full"):
        Fleet.model_validate({"name": "test", "pools": pools, "models": models})
