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
from deployments.fleet.settings import fleet_rules as rules
from deployments.fleet.settings import fleet_schema as schema
from deployments.fleet.settings import masking, redis_url
from deployments.fleet.settings.environment import escaped
from deployments.fleet.settings.model_routes import (
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
from router.redis_keys import BoardName, fleet_id

# Engines start with this maximum, regardless of a fleet's limit; as in OpenAI's API.
MOST_N = 128

DnsLabel = Annotated[str, AfterValidator(rules.dns_label), schema.written_as(rules.DNS_LABEL)]
WebAddress = Annotated[str, AfterValidator(rules.web_address), schema.written_as(rules.WEB_ADDRESS)]


class GatewaySettings(Section):
    """The OpenAI API of the fleet, and the limits of a request to it."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="The gateways listen on this address. 0.0.0.0 lets other machines in.",
    )
    port: int = Field(8000, ge=1, le=65535, description="The gateways listen on this port.")
    replicas: int = Field(
        1, ge=1, description="Number of gateway processes. One serves many engines."
    )
    replicas_per_node: int | None = Field(
        None,
        ge=1,
        description="One node holds at most this many gateway processes. With 1, each of "
        "`replicas` nodes answers on the port. A gateway without a node waits for "
        "one. With null, Ray spreads them evenly.",
    )
    request_timeout_s: float = Field(
        600.0,
        gt=0,
        description="A request must end within this many seconds of its arrival. A header may "
        "shorten this.",
    )
    max_body_bytes: int = Field(
        4194304,
        ge=1024,
        description="A request body may have at most this many bytes. Images in `data:` URLs and "
        "audio may need more.",
    )
    max_bodies_bytes: int = Field(
        134217728,
        ge=1024,
        description="The bodies of all requests in progress in a gateway process have at most "
        "this many bytes. Further requests get 503. A body may take ten times its "
        "bytes of memory.",
    )
    max_list_items: int = Field(
        1024,
        ge=1,
        description="A request's `stop`, `stop_token_ids` and `bad_words` may have at most this "
        "many items each.",
    )
    max_n: int = Field(
        8,
        ge=1,
        le=MOST_N,
        description="A request may ask for at most this many answers to a prompt, in `n`.",
    )
    max_sequences: int = Field(
        2048,
        ge=1,
        description="A request may ask for at most this many answers: `n` for each prompt, or one "
        "embedding for each input.",
    )
    max_answer_logprobs: int = Field(
        262144,
        ge=1,
        description="An answer may have at most this many logprobs, including those of its "
        "prompt. Each takes some 70 bytes of JSON, and several times that in the "
        "engine.",
    )
    retries: int = Field(
        1,
        ge=1,
        le=4,
        description="When an engine fails, up to this many other replicas try the answer, one "
        "after another. A request that is lost with all of them is rejected for "
        "three minutes.",
    )
    drain_timeout_s: float = Field(
        60.0,
        ge=0,
        description="When an engine or a gateway is removed, its answers may finish there for "
        "this many seconds.",
    )
    move_after_s: Annotated[float, Field(ge=0)] | None = Field(
        5.0,
        description="When an engine is removed, or may hang, its answers stay there for this "
        "many seconds. Then other engines with room continue those that they can, in "
        "the same streams. With null none moves.",
    )
    resume_within_s: float = Field(
        0.0,
        ge=0,
        le=600,
        description="When a gateway is lost, engines keep its streams for this many seconds, "
        "even if the clients do not return. Clients get the rest through another "
        "gateway with `x-antefix-resume`. With 0 no stream is kept.",
    )
    cpus: float = Field(
        0.1, ge=0, description="Ray reserves this many CPU cores for a gateway process."
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="A gateway process runs only on nodes with these custom Ray resources, by "
        "name and amount.",
    )
    tenants: Mapping[Annotated[str, Field(min_length=1)], Tenant] = Field(
        default_factory=dict,
        description="Rights of the tenants that API keys name. A tenant that is not listed has "
        "the defaults.",
    )

    cached_token_weight: float = Field(
        1.0,
        ge=0,
        le=1,
        description="A cached prompt token counts this much against `tokens_per_minute`, once the "
        "engine has reported it.",
    )
    links: Mapping[Annotated[str, Field(min_length=1)], WebAddress] = Field(
        default_factory=dict,
        description="The page at `/antefix/` shows these links to every API key: addresses by "
        "their text, such as Grafana.",
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
    """Where the prefix index and the load board live."""

    url: Annotated[str, AfterValidator(rules.usable_redis_url)] | None = Field(
        None,
        repr=False,
        description="The URL of Redis begins with redis://, rediss:// or unix://, or with one of "
        "the first two and +sentinel or +cluster. It may have user:password@ and "
        "${VARIABLE}. With null, Antefix starts an embedded Redis on loopback, for "
        "one machine.",
    )
    lookup_budget_ms: float = Field(
        5.0,
        gt=0,
        le=1000,
        description="A request waits at most this many milliseconds for the prefix index, then "
        "it is placed by load only.",
    )


class MetricsSettings(Section):
    """Where Prometheus finds what a node's gateways and engines count."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="Every node serves metrics on this address, without a key: let only "
        "Prometheus reach it. 0.0.0.0 lets other machines in.",
    )
    port: int = Field(
        9464,
        ge=1,
        le=65535,
        description="Every node serves metrics on this port.",
    )


class FleetBase(Section):
    """Settings that all processes of a fleet share, regardless of its pools."""

    name: DnsLabel = Field(
        description="The name of the fleet may hold lower case letters, digits and hyphens, 63 "
        "at most."
    )
    gateway: GatewaySettings = Field(
        default_factory=GatewaySettings,
        description="The gateways serve the OpenAI API with these settings and limits.",
    )
    redis: RedisSettings = Field(
        default_factory=RedisSettings,
        description="This Redis keeps the prefix index and the load board.",
    )
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings,
        description="Prometheus reads a node's metrics here.",
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
        """The fleet's name in Redis (`router.redis_keys`), shared by all its clusters."""
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
        description="The pools of engines, by name."
    )
    models: Mapping[ModelName, ModelRoute] = Field(
        default_factory=dict,
        description="More model names that lead to pools: aliases, splits, and one name over "
        "several pools.",
    )
    gpu_budget: float | None = Field(
        None,
        gt=0,
        description="All pools together use at most this many GPUs. The pool that needs them "
        "most gets them first.",
    )
    surge_percent: int = Field(
        0,
        ge=0,
        le=100,
        description="A rollout starts this percentage of replicas before it stops old ones, and "
        "needs free GPUs for them. With 0 it stops old ones first, a fifth at a time.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="Gateways and engines log lines of this level and above.",
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
