"""Names of models that lead to pools: aliases, splits, one name over several pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from common.section import Broken, Section, did_you_mean
from deployments.fleet.settings import fleet_rules as rules

ModelName = Annotated[str, AfterValidator(rules.usable_model_name)]


class ModelRoute(Section):
    """Where requests for one name go."""

    pools: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        min_length=1,
        description="These pools serve the name, each with a weight. A conversation stays in its "
        "pool. Of new conversations each pool gets its share of all weights. A pool of weight 0 "
        "gets none, and its conversations go on in the other pools.",
    )
    aliases: tuple[ModelName, ...] = Field(
        (), description="Clients may ask for these names instead."
    )


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
        if not any(route.pools.values()):
            yield Broken(
                (*loc, "pools"),
                dict(route.pools),
                f"weights of {name!r} sum to 0",
                "Give at least one pool a weight above 0, or remove the route",
            )
        for place, each in ((loc, name), *(((*loc, "aliases"), one) for one in route.aliases)):
            owner = owners.get(each)
            if owner is not None and not (each == name and owner in route.pools):
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
