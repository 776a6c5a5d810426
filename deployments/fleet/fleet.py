"""The fleet: what one YAML file says of a gateway, Redis and pools of engines.

A `Fleet` that exists is consistent in itself; whether vLLM takes its engine arguments is for
`fleet_file.load_fleet` to ask. Everything is frozen, unknown keys are refused, and null stands
for the default. Times are seconds, sizes bytes, rates tokens per second.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PrivateAttr,
    model_validator,
)

from autoscaling.slo import PriorityClass
from deployments.fleet.settings import fleet_rules as rules
from deployments.fleet.settings import fleet_schema as schema
from deployments.fleet.settings import masking, redis_url
from deployments.fleet.settings.environment import escaped
from deployments.fleet.settings.fleet_rules import EMBEDDED_MODEL, EMBEDDED_MODEL_NAME
from deployments.fleet.settings.objectives import (
    Autoscaling,
    Objective,
    Objectives,
    Overflow,
    Tenant,
)
from deployments.fleet.settings.quality import Quality, broken_by_quality
from deployments.fleet.settings.section import Section
from deployments.fleet.settings.speculation import Speculation, broken_by_speculation

__all__ = [
    "EMBEDDED_MODEL",
    "EMBEDDED_MODEL_NAME",
    "Autoscaling",
    "Fleet",
    "Gateway",
    "Metrics",
    "Objective",
    "Objectives",
    "Overflow",
    "Pool",
    "Price",
    "Quality",
    "Redis",
    "Resources",
    "Speculation",
    "Tenant",
]


DnsLabel = Annotated[str, AfterValidator(rules.dns_label), schema.written_as(rules.DNS_LABEL)]
PolicyName = Literal["prefix", "random", "round_robin", "least_loaded", "power_of_two", "session"]


class Gateway(Section):
    """The OpenAI API of the fleet, and the limits of a request to it."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="Address the gateways listen on. 0.0.0.0 lets other machines in.",
    )
    port: int = Field(8000, ge=1, le=65535, description="Port the gateways listen on.")
    replicas: int = Field(1, ge=1, description="Gateway processes. One serves many engines.")
    replicas_per_node: int | None = Field(
        None,
        ge=1,
        description="Gateway processes a node may hold; with 1, `replicas` is the number of nodes "
        "that have a gateway, and the port of each answers. Those that no node has room for wait "
        "for one. null: no limit, spread as evenly as Ray manages.",
    )
    request_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Deadline of a request, in seconds. A header may shorten it, never lengthen.",
    )
    max_body_bytes: int = Field(
        33554432, ge=1024, description="Largest request body taken, in bytes."
    )
    max_list_items: int = Field(
        1024,
        ge=1,
        description="Longest `stop`, `stop_token_ids` or `bad_words` list a request may hold.",
    )
    drain_timeout_s: float = Field(
        60.0,
        ge=0,
        description="How long streams in flight may go on after a scale-down or a shutdown, "
        "in seconds.",
    )
    cpus: float = Field(0.1, ge=0, description="CPU cores Ray reserves for a gateway process.")
    custom: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Custom Ray resources of a gateway process: name to amount. It runs on nodes "
        "that have them.",
    )
    tenants: Mapping[Annotated[str, Field(min_length=1)], Tenant] = Field(
        default_factory=dict,
        description="Rights of the tenants that API keys name; the others have the defaults.",
    )

    def priority_of(self, tenant: str) -> PriorityClass:
        """The highest class that a tenant's requests may have."""
        rights = self.tenants.get(tenant)
        return rights.priority if rights else "interactive"

    def is_operator(self, tenant: str) -> bool:
        """Whether a tenant sees the others' decisions."""
        rights = self.tenants.get(tenant)
        return rights is not None and rights.operator


class Redis(Section):
    """Where the prefix index and the load board live."""

    url: Annotated[str, AfterValidator(rules.usable_redis_url)] | None = Field(
        None,
        repr=False,
        description="Address: redis://, rediss://, unix://, or +sentinel and +cluster of the first "
        "two; user:password@ is taken, and so is ${VARIABLE}. null: a Redis embedded in Antefix, "
        "on loopback, for one machine.",
    )
    lookup_budget_ms: float = Field(
        5.0,
        gt=0,
        le=1000,
        description="Longest a request waits for the prefix index, in milliseconds; then it is "
        "placed by load alone.",
    )


class Metrics(Section):
    """Where Prometheus finds what a node's gateways and engines count."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="Address that every node's metrics are served at. 0.0.0.0 lets other machines "
        "in; there is no key, so let only Prometheus reach it.",
    )
    port: int = Field(
        9464,
        ge=1,
        le=65535,
        description="Port of that, on every node that has a gateway or an engine.",
    )


class Resources(Section):
    """What Ray reserves for one replica."""

    cpus: float = Field(1.0, ge=0, description="CPU cores.")
    gpus: float | None = Field(
        None,
        ge=0,
        description="GPUs; a fraction shares one. null: as many as the engine's parallelism uses, "
        "and none when vLLM is its CPU build.",
    )
    accelerator_type: str | None = Field(
        None, min_length=1, description="Ray's name of a kind of GPU, such as A100. null: any."
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict, description="Custom Ray resources: name to amount."
    )


class Price(Section):
    """What a pool's tokens cost, per million, in any one currency."""

    prompt: float = Field(ge=0, description="Prompt tokens that had to be computed.")
    cached: float | None = Field(
        None, ge=0, description="Prompt tokens found in a cache. null: as `prompt`."
    )
    output: float = Field(ge=0, description="Generated tokens.")


class Pool(Section):
    """Replicas of one engine, serving one model."""

    model: Annotated[
        str,
        AfterValidator(rules.usable_model),
        schema.written_as(rules.HUGGING_FACE_ID, rules.PATH),
    ] = Field(
        description=f"What to serve: `{EMBEDDED_MODEL}` (SmolLM2-135M-Instruct, 93 MB from "
        "the package index), a Hugging Face id, or a path."
    )
    served_model_name: Annotated[
        str, AfterValidator(rules.usable_model_name), schema.written_as(rules.MODEL_NAME)
    ] = Field(
        "",
        validate_default=True,
        description="Name that requests use in `model`. Unset: the last part of the model's id "
        f"or path, or {EMBEDDED_MODEL_NAME} for the embedded one.",
    )
    replicas: int = Field(
        1, ge=1, description="Engines that take traffic; with `autoscaling`, in the beginning."
    )
    warm_replicas: int = Field(
        0,
        ge=0,
        description="Engines loaded beyond those, idle until a gateway predicts that the SLO would "
        "be missed without: a spike need not wait for a load.",
    )
    autoscaling: Autoscaling | None = Field(
        None, description="How many replicas there are follows the load. null: always `replicas`."
    )
    slo: Objectives = Field(
        default_factory=Objectives,
        description="What the pool promises: a request that is predicted to miss it waits, "
        "overflows or is refused. Without, all are taken. The word `default` instead takes the "
        "targets of the SLO file that ships (docs/slo.md), a path those of your own.",
    )
    price: Price | None = Field(
        None, description="For the metric of each tenant's cost. null: none is counted."
    )
    batch_queue: int = Field(
        256,
        ge=0,
        description="Requests of the class `batch` that wait for their turn in a gateway process.",
    )
    overflow: Overflow | None = Field(
        None, description="Where requests go that cannot be served here in time. null: nowhere."
    )
    max_ongoing_requests: int = Field(
        256, ge=1, description="Requests a replica works on at once; Ray Serve holds back the rest."
    )
    max_queued_requests: int = Field(
        1024,
        ge=1,
        description="Requests a gateway process holds back for this pool; beyond it, 429.",
    )
    resources: Resources = Field(
        default_factory=Resources, description="What Ray reserves for one replica."
    )
    prefill_rate: float | None = Field(
        None,
        gt=0,
        description="Prompt tokens per second one replica computes: where the prediction of time "
        "to first token starts, until it has seen requests. null: a built-in guess.",
    )
    policy: PolicyName = Field(
        "prefix",
        description="How a request's replica is chosen. `prefix`: lowest predicted time to first "
        "token, prefixes that a replica holds included; `session`: the same replica for the same "
        "`session_header`; the others are what they are called.",
    )
    shadow_policy: PolicyName | None = Field(
        None,
        description="Policy whose choices are scored and counted beside `policy`'s, and not "
        "followed. null: none.",
    )
    session_header: Annotated[
        str, AfterValidator(rules.usable_header), schema.written_as(rules.HEADER)
    ] = Field("x-session-id", description="Request header that `session` policies go by.")
    segment_tokens: int = Field(
        128,
        ge=16,
        le=65536,
        description="Prompt tokens one entry of the prefix index stands for, rounded to a multiple "
        "of the engine's KV block. Smaller finds shorter prefixes, larger takes less of Redis.",
    )
    env: Mapping[
        Annotated[str, AfterValidator(rules.usable_env_name), schema.written_as(rules.ENV_NAME)],
        Annotated[str, AfterValidator(rules.usable_env_value)],
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_env(),
        description="Environment of the engine's process. Values are strings and may hold "
        "${VARIABLE}.",
    )
    engine_args: Annotated[
        Mapping[Annotated[str, AfterValidator(rules.free_engine_arg)], JsonValue],
        BeforeValidator(rules.no_engine_arg_twice),
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_engine_args(),
        description="vLLM's own flags without the leading --, with - or _: quantization, "
        "tensor_parallel_size, kv_cache_dtype, speculative_config, lora_modules, ...",
    )
    speculation: Speculation | None = Field(
        None,
        description="For pools whose `engine_args` have a speculative_config. null: the defaults.",
    )
    quality: Quality | None = Field(
        None,
        description="What the weights have to prove before they are served, by the report that "
        "`antefix evaluate` writes into their folder; a report of other weights counts for "
        "nothing. null: nothing.",
    )

    @model_validator(mode="before")
    @classmethod
    def _named_after_the_model(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("served_model_name") is not None:
            return data
        # a name for a pool without a usable model, which is refused for that alone
        return {**data, "served_model_name": rules.name_of_model(data.get("model")) or "unnamed"}

    @model_validator(mode="after")
    def _resources_fit(self) -> Self:
        rules.raise_all(rules.broken_by_pool(self.engine_args, self.resources.gpus))
        rules.raise_all(rules.broken_by_objectives(self))
        rules.raise_all(broken_by_speculation(self.speculation, self.engine_args))
        rules.raise_all(broken_by_quality(self.quality, self.model))
        return self

    @property
    def revision(self) -> str | None:
        """The model's revision, where the engine arguments name one."""
        revision = self.engine_args.get("revision")
        return revision if isinstance(revision, str) else None

    @property
    def is_scaled(self) -> bool:
        """Whether it is decided again and again how many engines take traffic."""
        return self.autoscaling is not None or self.warm_replicas > 0

    @property
    def first_replicas(self) -> int:
        """Engines to begin with, warm ones included."""
        wanted = self.replicas + self.warm_replicas
        if self.autoscaling is None:
            return wanted
        return max(self.autoscaling.min_replicas, min(wanted, self.autoscaling.max_replicas))

    @property
    def most_replicas(self) -> int:
        """Engines that there may be at once, warm ones included."""
        return self.autoscaling.max_replicas if self.autoscaling else self.first_replicas

    @property
    def tensor_parallel(self) -> int:
        """GPUs one layer is split over."""
        return rules.parallel_size(self.engine_args, "tensor_parallel_size")

    @property
    def pipeline_parallel(self) -> int:
        """Stages the layers are split into."""
        return rules.parallel_size(self.engine_args, "pipeline_parallel_size")

    @property
    def world_size(self) -> int:
        """Processes of one replica's engine, each on a GPU of its own."""
        return rules.world_size(self.engine_args)

    @property
    def lora_names(self) -> tuple[str, ...]:
        """LoRA adapters served beside the model, by the names requests use."""
        return rules.lora_names(self.engine_args)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every name a request may put in `model` to reach this pool, its own model first."""
        return (self.served_model_name, *self.lora_names)


class Fleet(Section):
    """Everything one deployment of Antefix runs."""

    name: DnsLabel = Field(
        description="Name of the fleet: lower case letters, digits and hyphens, 63 at most."
    )
    gateway: Gateway = Field(
        default_factory=Gateway, description="The OpenAI API, and the limits of a request."
    )
    redis: Redis = Field(
        default_factory=Redis, description="Where the prefix index and the load board live."
    )
    metrics: Metrics = Field(
        default_factory=Metrics,
        description="Where Prometheus finds what a node's gateways and engines count.",
    )
    pools: Annotated[Mapping[DnsLabel, Pool], Field(min_length=1)] = Field(
        description="Pools of engines: name to pool."
    )
    gpu_budget: float | None = Field(
        None,
        gt=0,
        description="GPUs that all pools together may use: who needs them most gets them. "
        "null: as many as `max_replicas` of each come to.",
    )
    surge_percent: int = Field(
        0,
        ge=0,
        le=100,
        description="Replicas, as a share of those there should be, that a rollout by Ray Serve "
        "may start before it stops old ones; it needs GPUs for these. 0: old ones stop first, a "
        "fifth at a time.",
    )

    @model_validator(mode="after")
    def _pools_fit_together(self) -> Self:
        rules.raise_all(rules.broken_by_pools(self.model_dump()["pools"]))
        rules.raise_all(rules.broken_by_budget(self))
        rules.raise_all(rules.broken_by_ports(self))
        return self

    # Not of the file: where two Ray clusters run one fleet, as an upgrade does for a while, neither
    # may count the other's replicas.
    _cluster: str = PrivateAttr("")

    def in_cluster(self, name: str) -> Self:
        """The same fleet, as it runs in the Ray cluster of that name."""
        fleet = self.model_copy()
        fleet._cluster = name
        return fleet

    def board_of(self, pool: str) -> str:
        """The pool's name on the load board: fleets, and clusters of one, may share a Redis."""
        return f"{self.name}@{self._cluster}/{pool}" if self._cluster else f"{self.name}/{pool}"

    def to_yaml(self) -> str:
        """The whole fleet with its defaults filled in and every secret shown as ***.

        Reading it gives an equal fleet, unless it holds a secret.
        """
        data = self.model_dump(mode="python")
        if self.redis.url is not None:
            data["redis"]["url"] = escaped(redis_url.masked(self.redis.url))
        for pool in data["pools"].values():
            masked = masking.masked_env(pool["env"])
            pool["env"] = {name: escaped(value) for name, value in masked.items()}
        return yaml.safe_dump(data, sort_keys=False, width=100)
