"""Names of models that lead to pools or adapters: aliases, splits, one name over several pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from common.section import Broken, Section, did_you_mean
from deployments.fleet.settings import fleet_rules as rules

ModelName = Annotated[str, AfterValidator(rules.usable_model_name)]


Weight = Annotated[float, Field(ge=0)]


class CanarySettings(Section):
    """A pool or adapter that gets more of a model's conversations step by step, or none at once."""

    pool: str | None = Field(
        None, description="The pool that is the canary. `pools` must not name it."
    )
    adapter: str | None = Field(
        None,
        description="The adapter that is the canary, for a model with `adapters`. `adapters` must "
        "not name it.",
    )
    steps: Sequence[Annotated[float, Field(gt=0, le=100)]] = Field(
        (1.0, 5.0, 25.0, 50.0, 100.0),
        min_length=1,
        description="The percentages of new conversations that the canary gets, one after another. "
        "After the last step, it is promoted and gets all new conversations.",
    )
    step_s: float = Field(600.0, gt=0, description="The minimum duration of each step in seconds.")
    requests: int = Field(
        50, ge=1, description="The minimum number of requests that the canary serves in each step."
    )
    alpha: float = Field(
        0.01,
        gt=0,
        lt=0.5,
        description="The maximum probability of aborting a canary that is as good as the other "
        "pools.",
    )
    error_rate: float = Field(
        0.01, gt=0, lt=0.2, description="The share of the canary's requests that may fail."
    )

    @property
    def of(self) -> str:
        """The name of the pool or adapter."""
        return self.pool or self.adapter or ""


class MirrorSettings(Section):
    """A pool that gets copies of requests. Its answers are compared and thrown away."""

    pool: str = Field(
        description="The pool that gets the copies. No name in `models` may lead to it, and no "
        "pool may overflow to it."
    )
    percent: float = Field(
        1.0, gt=0, le=100, description="The percentage of conversations that are copied."
    )


class ModelRoute(Section):
    """Where requests for one name go."""

    pools: Mapping[str, Weight] = Field(
        default_factory=dict,
        description="The pools that serve this name, each with a weight. A conversation stays in "
        "its pool. New conversations are distributed over the pools according to the weights. A "
        "pool with weight 0 gets none, and its conversations continue in the other pools.",
    )
    adapters: Mapping[ModelName, Weight] = Field(
        default_factory=dict,
        description="LoRA adapters that serve this name instead of pools, each with a weight as in "
        "`pools`. The name of a pool's model stands for the model without an adapter. An adapter "
        "that is not loaded gets no requests.",
    )
    select: Literal["weight", "price"] = Field(
        "weight",
        description="How the pool is selected. With `weight`, conversations are split according to "
        "the weights in `pools`. With `price`, each request goes to the cheapest pool that has a "
        "weight above 0 and is predicted to meet its SLO. If there is no such pool, it goes to the "
        "pool with the earliest predicted first token. With `price`, the pools need `price` and "
        "`slo.interactive`.",
    )
    aliases: Sequence[ModelName] = Field(
        (), description="Alternative names that clients can request."
    )
    canary: CanarySettings | None = Field(
        None,
        description="A pool that gets a growing share of new conversations, and is aborted if it "
        "is worse than the others.",
    )
    mirror: MirrorSettings | None = Field(
        None,
        description="A pool that gets copies of requests, so that its answers can be compared.",
    )


def broken_by_mirrors(
    models: Mapping[str, ModelRoute], overflows: Mapping[str, str | None]
) -> Iterator[Broken]:
    """What mirrors must be to the pools: copies must not delay requests. `overflows`: where each
    pool overflows to."""
    used: dict[str, str] = {}
    for name, route in models.items():
        used |= dict.fromkeys(route.pools, f"models.{name}.pools has this pool too")
        if route.canary is not None and route.canary.pool is not None:
            used[route.canary.pool] = f"it is the canary of models.{name}"
    for pool, to in overflows.items():
        if to is not None:
            used[to] = f"pools.{pool} overflows to it"
    for name, route in models.items():
        if (mirror := route.mirror) is None:
            continue
        loc = ("models", name, "mirror", "pool")
        if mirror.pool not in overflows:
            remedy = (
                did_you_mean(mirror.pool, list(overflows)) or f"Pools here: {', '.join(overflows)}"
            )
            yield Broken(loc, mirror.pool, "no pool has this name", remedy)
        elif mirror.pool in used:
            remedy = "Copies would delay its requests: give the mirror another pool"
            yield Broken(loc, mirror.pool, used[mirror.pool], remedy)


def broken_by_canaries(
    models: Mapping[str, ModelRoute], overflows: Mapping[str, str | None]
) -> Iterator[Broken]:
    """What canaries must be to their routes. `overflows`: where each pool overflows to."""
    for name, route in models.items():
        if (canary := route.canary) is None:
            continue
        loc = ("models", name, "canary")
        if list(canary.steps) != sorted(set(canary.steps)):
            yield Broken((*loc, "steps"), canary.steps, "steps must rise", "Sort them")
        if route.adapters:
            if canary.pool is not None or canary.adapter is None:
                message = "the canary of a model with `adapters` is an adapter"
                yield Broken(loc, ..., message, "Name it in `adapter`, and remove `pool`")
            elif canary.adapter in route.adapters:
                message = f"models.{name}.adapters has this adapter too"
                remedy = "Remove it from one of the two"
                yield Broken((*loc, "adapter"), canary.adapter, message, remedy)
        elif canary.pool is None or canary.adapter is not None:
            message = "the canary of a model with `pools` is a pool"
            yield Broken(loc, ..., message, "Name it in `pool`, and remove `adapter`")
        elif canary.pool not in overflows:
            remedy = (
                did_you_mean(canary.pool, list(overflows)) or f"Pools here: {', '.join(overflows)}"
            )
            yield Broken((*loc, "pool"), canary.pool, "no pool has this name", remedy)
        elif canary.pool in route.pools:
            message = f"models.{name}.pools has this pool too"
            yield Broken((*loc, "pool"), canary.pool, message, "Remove it from one of the two")
        elif overflows[canary.pool] in route.pools:
            message = "the canary overflows to a pool of its model, which hides that it is full"
            yield Broken((*loc, "pool"), canary.pool, message, "Remove the overflow of its pool")


def broken_by_prices(
    models: Mapping[str, ModelRoute], lacking: Mapping[str, str]
) -> Iterator[Broken]:
    """What pools must have that compete for requests. `lacking`: what a pool does not have."""
    for name, route in models.items():
        if route.select != "price":
            continue
        loc = ("models", name, "select")
        for pool, weight in route.pools.items():
            if weight > 0 and pool in lacking:
                message = f"pools.{pool} has no {lacking[pool]}"
                yield Broken(loc, route.select, message, f"Set pools.{pool}.{lacking[pool]}")
        if route.canary is not None:
            message = "a canary needs select: weight"
            yield Broken(loc, route.select, message, "Remove the canary, or set select to weight")


def broken_by_adapter_routes(
    models: Mapping[str, ModelRoute], served: Mapping[str, tuple[str, ...]], accepted: bool
) -> Iterator[Broken]:
    """What routes to adapters must be. `served`: the model names of each pool. `accepted`: a pool
    accepts adapters while it serves."""
    names = [name for of in served.values() for name in of]
    for name, route in models.items():
        loc = ("models", name)
        if bool(route.pools) == bool(route.adapters):
            has = "both `pools` and" if route.pools else "neither `pools` nor"
            yield Broken(loc, ..., f"it has {has} `adapters`", "Give one of the two")
        if not route.adapters:
            continue
        canary = route.canary.adapter if route.canary else None
        for each in [*route.adapters, *([] if canary is None else [canary])]:
            if not accepted and each not in names:
                message = f"no pool serves {each!r}, and none accepts adapters while it serves"
                remedy = did_you_mean(each, names) or "Give its pool `adapters`"
                yield Broken((*loc, "adapters"), each, message, remedy)
        if route.select != "weight":
            message = "adapters need select: weight"
            yield Broken((*loc, "select"), route.select, message, "Remove `select`")
        if route.mirror is not None:
            message = "requests for adapters are not copied"
            yield Broken((*loc, "mirror"), ..., message, "Remove the mirror")


def broken_by_models(
    models: Mapping[str, ModelRoute], served: Mapping[str, tuple[str, ...]]
) -> Iterator[Broken]:
    """What routes must be to pools and to each other. `served`: the model names of each pool."""
    owners = {name: pool for pool, names in served.items() for name in names}
    routes: dict[str, str] = {}
    for name, route in models.items():
        loc = ("models", name)
        for pool in route.pools:
            if pool not in served:
                remedy = did_you_mean(pool, list(served)) or f"Pools here: {', '.join(served)}"
                yield Broken((*loc, "pools", pool), ..., "no pool has this name", remedy)
        weights = route.pools or route.adapters
        if weights and not any(weights.values()):
            yield Broken(
                (*loc, "pools" if route.pools else "adapters"),
                dict(weights),
                f"weights of {name!r} sum to 0",
                "Give at least one a weight above 0, or remove the route",
            )
        for place, each in ((loc, name), *(((*loc, "aliases"), one) for one in route.aliases)):
            owner = owners.get(each)
            leads_there = owner in route.pools or each in route.adapters
            if owner is not None and not (each == name and leads_there):
                yield Broken(
                    place,
                    each,
                    f"it shadows a model that pools.{owner} serves",
                    f"Take another name, or let the route {each!r} lead to {owner}",
                )
            if each in routes:
                message = f"models.{routes[each]} has this name too"
                yield Broken(place, each, message, "Give one of the two another name")
            routes.setdefault(each, name)
