"""The models of a fleet file: gateways, Redis and pools of engines.

A `Fleet` is consistent in itself; `fleet_file.load_fleet` asks vLLM about its engine arguments.
Everything is frozen, unknown keys are rejected, and null selects the default. Times are seconds,
sizes bytes, rates tokens per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    model_validator,
)

from autoscaling.slo import PriorityClass
from common.section import Section, raise_all
from deployments.fleet.pool import Pool
from deployments.fleet.reach import Reach, Withheld
from deployments.fleet.settings import fleet_rules as rules
from deployments.fleet.settings import fleet_schema as schema
from deployments.fleet.settings import masking, redis_url
from deployments.fleet.settings.environment import escaped
from deployments.fleet.settings.model_names import (
    ModelName,
    ModelRoute,
    broken_by_adapter_routes,
    broken_by_canaries,
    broken_by_mirrors,
    broken_by_models,
    broken_by_prices,
)
from deployments.fleet.settings.objectives import (
    Tenant,
)
from router.redis.redis_keys import BoardName, fleet_id

# Engines start with this maximum, regardless of a fleet's limit; as in OpenAI's API.
MOST_N = 128

DnsLabel = Annotated[str, AfterValidator(rules.dns_label), schema.written_as(rules.DNS_LABEL)]
WebAddress = Annotated[str, AfterValidator(rules.web_address), schema.written_as(rules.WEB_ADDRESS)]


class GatewaySettings(Section):
    """The OpenAI API of the fleet, and the limits of a request to it."""

    host: Annotated[str, Field(min_length=1), Reach.GATEWAYS] = Field(
        "127.0.0.1",
        description="The address on which the gateways listen. Use 0.0.0.0 to allow connections "
        "from other machines.",
    )
    port: Annotated[int, Reach.GATEWAYS] = Field(
        8000, ge=1, le=65535, description="The port on which the gateways listen."
    )
    replicas: Annotated[int, Reach.HOT] = Field(
        1, ge=1, description="The number of gateway processes. One process can serve many engines."
    )
    replicas_per_node: Annotated[int | None, Reach.GATEWAYS] = Field(
        None,
        ge=1,
        description="The maximum number of gateway processes per node. If it is 1, "
        "Ray starts the gateways on `replicas` different nodes, and each of these nodes answers on "
        "the port. If there are too few nodes, the remaining gateways wait for one. "
        "If null, Ray spreads the gateways evenly over the nodes.",
    )
    request_timeout_s: Annotated[float, Reach.HOT] = Field(
        600.0,
        gt=0,
        description="The time in seconds within which a request must end after its arrival. A "
        "request header can shorten it.",
    )
    max_body_bytes: Annotated[int, Reach.HOT] = Field(
        4194304,
        ge=1024,
        description="The maximum size of a request body in bytes. Images in `data:` URLs and audio "
        "may need more than the default.",
    )
    max_bodies_bytes: Annotated[int, Reach.HOT] = Field(
        134217728,
        ge=1024,
        description="The maximum total size in bytes of the bodies of all requests in progress in "
        "a gateway process. Further requests get 503. In memory, a body can take ten times its "
        "size.",
    )
    max_list_items: Annotated[int, Reach.HOT] = Field(
        1024,
        ge=1,
        description="The maximum number of items in each of the fields `stop`, `stop_token_ids` "
        "and `bad_words` of a request.",
    )
    max_n: Annotated[int, Reach.HOT] = Field(
        8,
        ge=1,
        le=MOST_N,
        description="The maximum value of `n`, the number of answers per prompt.",
    )
    max_sequences: Annotated[int, Reach.HOT] = Field(
        2048,
        ge=1,
        description="The maximum number of sequences per request: `n` for each prompt, or one "
        "embedding for each input.",
    )
    max_answer_logprobs: Annotated[int, Reach.HOT] = Field(
        262144,
        ge=1,
        description="The maximum number of logprobs per answer, including those of the prompt. "
        "Each takes about 70 bytes of JSON, and several times that in the engine.",
    )
    retries: Annotated[int, Reach.HOT] = Field(
        1,
        ge=1,
        le=4,
        description="The number of further attempts after the first one if an engine fails, each "
        "on another replica. With 1, a request gets two attempts. If every attempt loses its "
        "engine, gateways reject the request for three minutes.",
    )
    drain_timeout_s: Annotated[float, Reach.FLEET] = Field(
        600.0,
        ge=0,
        description="The time in seconds that answers have to finish when their engine or gateway "
        "is removed. The default is equal to that of `request_timeout_s`, so that no removal cuts "
        "an answer.",
    )
    move_after_s: Annotated[Annotated[float, Field(ge=0)] | None, Reach.HOT] = Field(
        5.0,
        description="The time in seconds for which answers stay at an engine that is removed or "
        "that may hang. Then other engines that have room resume the answers that they can, in the "
        "same streams. If null, answers never move.",
    )
    cpus: Annotated[float, Reach.GATEWAYS] = Field(
        0.1, ge=0, description="The number of CPU cores that Ray reserves for each gateway process."
    )
    custom: Annotated[Mapping[str, Annotated[float, Field(ge=0)]], Reach.GATEWAYS] = Field(
        default_factory=dict,
        description="The names and amounts of custom Ray resources. Gateway processes run only on "
        "nodes that have them.",
    )
    tenants: Annotated[Mapping[Annotated[str, Field(min_length=1)], Tenant], Reach.HOT] = Field(
        default_factory=dict,
        description="The rights of each tenant that API keys name. A tenant that is not listed has "
        "the defaults.",
    )

    cached_token_weight: Annotated[float, Reach.HOT] = Field(
        1.0,
        ge=0,
        le=1,
        description="The weight with which a cached prompt token counts toward "
        "`tokens_per_minute`, once the engine has reported it.",
    )
    links: Annotated[Mapping[Annotated[str, Field(min_length=1)], WebAddress], Reach.HOT] = Field(
        default_factory=dict,
        description="Links in the footer of the web UI at `/antefix/`: a mapping from the text of "
        "a link, such as Grafana, to its address. Every API key can see them.",
    )

    def priority_of(self, tenant: str) -> PriorityClass:
        """Return the highest class that a tenant's requests may have."""
        rights = self.tenants.get(tenant)
        return rights.priority if rights else "interactive"

    def cache_group_of(self, tenant: str) -> str | None:
        """Return the group whose tenants share cached prompts with a tenant; None: it does not
        share."""
        rights = self.tenants.get(tenant)
        return rights.cache_group if rights else None

    def may_choose_policy(self, tenant: str) -> bool:
        """Return whether a tenant's requests may select their routing policy."""
        rights = self.tenants.get(tenant)
        return rights is not None and rights.policy_header

    def may_prioritize(self, tenant: str) -> bool:
        """Return whether a tenant's requests may set vLLM's `priority`."""
        rights = self.tenants.get(tenant)
        return rights is not None and rights.engine_priority

    def is_operator(self, tenant: str) -> bool:
        """Return whether a tenant sees the others' decisions."""
        rights = self.tenants.get(tenant)
        return rights is not None and rights.operator


class RedisSettings(Section):
    """Where the prefix index and the loads of replicas are kept."""

    url: Annotated[
        Annotated[str, AfterValidator(rules.usable_redis_url)] | None,
        Reach.FLEET,
        Withheld.FROM_GATEWAYS,
    ] = Field(
        None,
        repr=False,
        description="The URL of Redis. It begins with redis://, rediss:// or unix://. For the "
        "first two, +sentinel or +cluster can be added before ://. The URL may contain "
        "user:password@ and ${VARIABLE}. If null, Antefix starts an embedded Redis on loopback, "
        "which works for one machine.",
    )
    lookup_budget_ms: Annotated[float, Reach.HOT] = Field(
        5.0,
        gt=0,
        le=1000,
        description="The maximum time in milliseconds that a request waits for the prefix index. "
        "After that, it is routed by load only.",
    )


class MetricsSettings(Section):
    """Where Prometheus finds what a node's gateways and engines count."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="The address on which every node serves metrics. Use 0.0.0.0 to allow "
        "connections from other machines. The endpoint does not require a key, so let only "
        "Prometheus reach it.",
    )
    port: int = Field(
        9464,
        ge=1,
        le=65535,
        description="The port on which every node serves metrics.",
    )


class FleetBase(Section):
    """Settings that all processes of a fleet share, regardless of its pools."""

    name: Annotated[DnsLabel, Reach.FLEET] = Field(
        description="The name of the fleet: up to 63 lowercase letters, digits and hyphens."
    )
    gateway: GatewaySettings = Field(
        default_factory=GatewaySettings,
        description="Settings and limits of the gateways, which serve the HTTP API.",
    )
    redis: RedisSettings = Field(
        default_factory=RedisSettings,
        description="The Redis in which the prefix index and the loads of replicas are kept.",
    )
    metrics: Annotated[MetricsSettings, Reach.FLEET] = Field(
        default_factory=MetricsSettings,
        description="Where Prometheus can read the metrics of a node.",
    )

    # Not in the file: during an upgrade two Ray clusters run one fleet, and neither may count the
    # other's replicas.
    _cluster: str = PrivateAttr("")
    # Not in the file either: derived from the engine secret. "": no secret is known.
    _id: str = PrivateAttr("")

    def in_cluster(self, name: str) -> Self:
        """Return the same fleet as it runs in the Ray cluster of that name."""
        fleet = self.model_copy()
        fleet._cluster = name
        return fleet

    def applied_to(self, fleet: Fleet) -> Fleet:
        """Return `fleet` with this fleet's cluster and Redis id."""
        found = fleet.in_cluster(self._cluster)
        found._id = self._id
        return found

    def with_secret(self, engine_secret: str) -> Self:
        """Return the same fleet, with the Redis keys that belong to its engine secret."""
        fleet = self.model_copy()
        fleet._id = fleet_id(engine_secret)
        return fleet

    @property
    def redis_name(self) -> str:
        """The fleet's name in Redis (`router.redis.redis_keys`), shared by all its clusters."""
        return f"{self.name}.{self._id}" if self._id else self.name

    @property
    def board(self) -> str:
        """The name in Redis of the fleet in this cluster."""
        return f"{self.redis_name}@{self._cluster}" if self._cluster else self.redis_name

    def board_of(self, pool: str) -> BoardName:
        """Return the name in Redis of the pool's board in this cluster."""
        return BoardName.of(self.board, pool)


class Fleet(FleetBase):
    """Everything one deployment of Antefix runs."""

    pools: Annotated[Mapping[DnsLabel, Pool], Field(min_length=1)] = Field(
        description="The pools of engines: a mapping from names to settings."
    )
    models: Annotated[Mapping[ModelName, ModelRoute], Reach.HOT] = Field(
        default_factory=dict,
        description="Additional model names that lead to pools, for aliases, for splits, and for "
        "one name over several pools.",
    )
    gpu_budget: Annotated[float | None, Reach.HOT] = Field(
        None,
        gt=0,
        description="The maximum number of GPUs that all pools together use. The pool that needs "
        "them most gets them first.",
    )
    # hot, because it applies to a rollout with another cause
    surge_percent: Annotated[int, Reach.HOT] = Field(
        0,
        ge=0,
        le=100,
        description="The percentage of replicas that a rollout starts before it stops old "
        "replicas. It needs free GPUs for them. If 0, the rollout stops old replicas first, a "
        "fifth of them at a time.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Reach.HOT] = Field(
        "info",
        description="The minimum level of the lines that gateways and engines log.",
    )

    @model_validator(mode="after")
    def _pools_fit_together(self) -> Self:
        raise_all(rules.broken_by_pools(self.model_dump()["pools"]))
        served = {name: pool.model_names for name, pool in self.pools.items()}
        accepted = any(pool.adapters is not None for pool in self.pools.values())
        raise_all(broken_by_adapter_routes(self.models, served, accepted))
        raise_all(broken_by_models(self.models, served))
        overflows = {
            name: pool.overflow.to if pool.overflow else None for name, pool in self.pools.items()
        }
        raise_all(broken_by_canaries(self.models, overflows))
        raise_all(broken_by_mirrors(self.models, overflows))
        without_slo = {n: "slo.interactive" for n, p in self.pools.items() if not p.slo.interactive}
        without_price = {n: "price" for n, p in self.pools.items() if p.price is None}
        of_zero = {
            n: "autoscaling.min_replicas of at least 1"
            for n, p in self.pools.items()
            if p.autoscaling is not None and p.autoscaling.min_replicas == 0
        }
        raise_all(broken_by_prices(self.models, without_slo | without_price | of_zero))
        raise_all(rules.broken_by_budget(self))
        raise_all(rules.broken_by_ports(self))
        return self

    def to_yaml(self) -> str:
        """Return the whole fleet with defaults filled in and every secret shown as ***.

        Reading it gives an equal fleet, unless it contains a secret.
        """
        data = self.model_dump(mode="python")
        if self.redis.url is not None:
            data["redis"]["url"] = escaped(redis_url.masked(self.redis.url))
        for pool in data["pools"].values():
            masked = masking.masked_env(pool["env"])
            pool["env"] = {name: escaped(value) for name, value in masked.items()}
        return yaml.safe_dump(data, sort_keys=False, width=100)
