"""The fleet: what one YAML file says of a gateway, Redis and pools of engines.

A `Fleet` that exists is consistent in itself; whether vLLM takes its engine arguments is for
`fleet_file.load_fleet` to ask. Everything is frozen, unknown keys are refused, and null stands
for the default. Times are seconds, sizes bytes, rates tokens per second.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

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
from common.section import Section, raise_all
from deployments.fleet.settings import fleet_rules as rules
from deployments.fleet.settings import fleet_schema as schema
from deployments.fleet.settings import masking, redis_url
from deployments.fleet.settings.environment import escaped
from deployments.fleet.settings.fleet_rules import EMBEDDED_MODEL, EMBEDDED_MODEL_NAME
from deployments.fleet.settings.objectives import (
    Autoscaling,
    Objective,
    Objectives,
    OverflowSettings,
    Tenant,
)
from deployments.fleet.settings.quality import Quality, broken_by_quality
from deployments.fleet.settings.speculation import SpeculationSettings, broken_by_speculation
from router.policies import PolicyName

__all__ = [
    "EMBEDDED_MODEL",
    "EMBEDDED_MODEL_NAME",
    "Autoscaling",
    "Fleet",
    "GatewaySettings",
    "MetricsSettings",
    "Objective",
    "Objectives",
    "OverflowSettings",
    "Pool",
    "Price",
    "Quality",
    "RedisSettings",
    "ReplicaResources",
    "SpeculationSettings",
    "Tenant",
]


DnsLabel = Annotated[str, AfterValidator(rules.dns_label), schema.written_as(rules.DNS_LABEL)]


class GatewaySettings(Section):
    """The OpenAI API of the fleet, and the limits of a request to it."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="The gateways listen on this address. 0.0.0.0 lets other machines in.",
    )
    port: int = Field(8000, ge=1, le=65535, description="The gateways listen on this port.")
    replicas: int = Field(
        1, ge=1, description="There are this many gateway processes. One serves many engines."
    )
    replicas_per_node: int | None = Field(
        None,
        ge=1,
        description="One node holds at most this many gateway processes. With 1, `replicas` is "
        "the number of nodes that have a gateway, and each of these nodes answers on the port. A "
        "gateway that finds no node waits for one. With null there is no limit, and Ray spreads "
        "them as evenly as it can.",
    )
    request_timeout_s: float = Field(
        600.0,
        gt=0,
        description="A request must be finished within this many seconds of its arrival. A "
        "header may shorten this, never lengthen it.",
    )
    max_body_bytes: int = Field(
        33554432, ge=1024, description="A request body may have at most this many bytes."
    )
    max_list_items: int = Field(
        1024,
        ge=1,
        description="A request's `stop`, `stop_token_ids` and `bad_words` may have at most this "
        "many items each.",
    )
    drain_timeout_s: float = Field(
        60.0,
        ge=0,
        description="Streams that are running at a scale-down or a shutdown may go on for this "
        "many seconds.",
    )
    cpus: float = Field(
        0.1, ge=0, description="Ray reserves this many CPU cores for a gateway process."
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="A gateway process runs only on nodes that have these custom Ray resources, "
        "given by name and amount.",
    )
    tenants: Mapping[Annotated[str, Field(min_length=1)], Tenant] = Field(
        default_factory=dict,
        description="These are the rights of the tenants that API keys name. A tenant that is "
        "not listed has the default rights.",
    )

    def priority_of(self, tenant: str) -> PriorityClass:
        """The highest class that a tenant's requests may have."""
        rights = self.tenants.get(tenant)
        return rights.priority if rights else "interactive"

    def is_operator(self, tenant: str) -> bool:
        """Whether a tenant sees the others' decisions."""
        rights = self.tenants.get(tenant)
        return rights is not None and rights.operator


class RedisSettings(Section):
    """Where the prefix index and the load board live."""

    url: Annotated[str, AfterValidator(rules.usable_redis_url)] | None = Field(
        None,
        repr=False,
        description="Redis is reached at this URL, which begins with redis://, rediss:// or "
        "unix://, or with one of the first two and +sentinel or +cluster. It may hold "
        "user:password@ and ${VARIABLE}. With null, Antefix starts a Redis of its own on "
        "loopback, for one machine.",
    )
    lookup_budget_ms: float = Field(
        5.0,
        gt=0,
        le=1000,
        description="A request waits at most this many milliseconds for the prefix index. After "
        "that it is placed by load alone.",
    )


class MetricsSettings(Section):
    """Where Prometheus finds what a node's gateways and engines count."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="Every node serves its metrics on this address. 0.0.0.0 lets other machines "
        "in. No key is asked for, so let only Prometheus reach it.",
    )
    port: int = Field(
        9464,
        ge=1,
        le=65535,
        description="Every node that has a gateway or an engine serves its metrics on this port.",
    )


class ReplicaResources(Section):
    """What Ray reserves for one replica."""

    cpus: float = Field(1.0, ge=0, description="A replica reserves this many CPU cores.")
    gpus: float | None = Field(
        None,
        ge=0,
        description="A replica reserves this many GPUs. A fraction shares one. With null it "
        "reserves as many as the engine's parallelism uses, and none if vLLM is its CPU build.",
    )
    accelerator_type: str | None = Field(
        None,
        min_length=1,
        description="The GPUs must be of this kind, by Ray's name for it, such as A100. With "
        "null any kind will do.",
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="A replica reserves these custom Ray resources, given by name and amount.",
    )


class Price(Section):
    """What a pool's tokens cost, per million, in any one currency."""

    prompt: float = Field(
        ge=0, description="A million prompt tokens that had to be computed cost this much."
    )
    cached: float | None = Field(
        None,
        ge=0,
        description="A million prompt tokens that were found in a cache cost this much. With "
        "null they cost as much as `prompt` says.",
    )
    output: float = Field(ge=0, description="A million generated tokens cost this much.")


class Pool(Section):
    """Replicas of one engine, serving one model."""

    model: Annotated[
        str,
        AfterValidator(rules.usable_model),
        schema.written_as(rules.HUGGING_FACE_ID, rules.PATH),
    ] = Field(
        description=f"The engines serve this model. It is `{EMBEDDED_MODEL}` "
        "(SmolLM2-135M-Instruct, 93 MB from the package index), a Hugging Face id, or a path."
    )
    served_model_name: Annotated[
        str, AfterValidator(rules.usable_model_name), schema.written_as(rules.MODEL_NAME)
    ] = Field(
        "",
        validate_default=True,
        description="Requests name the model so in `model`. Without a name it is the last part "
        f"of the model's id or path, or {EMBEDDED_MODEL_NAME} for the embedded model.",
    )
    replicas: int = Field(
        1,
        ge=1,
        description="This many engines take traffic. With `autoscaling` it is the number to "
        "begin with.",
    )
    warm_replicas: int = Field(
        0,
        ge=0,
        description="This many more engines are kept loaded but idle. A gateway wakes one when "
        "it predicts that the SLO would be missed without it, so that a spike need not wait for "
        "a model to load.",
    )
    autoscaling: Autoscaling | None = Field(
        None,
        description="The number of replicas follows the load within these limits. With null it "
        "is always `replicas`.",
    )
    slo: Objectives = Field(
        default_factory=Objectives,
        description="This is the latency that the pool promises. A request that is predicted to "
        "miss it waits, overflows or is refused. Without a promise every request is accepted. "
        "Instead of a mapping, the word `default` takes the targets of the SLO file that ships "
        "with Antefix (docs/slo.md), and a path takes those of your own file.",
    )
    price: Price | None = Field(
        None,
        description="The metric of each tenant's cost is counted with these prices, in any "
        "currency. With null no cost is counted.",
    )
    batch_queue: int = Field(
        256,
        ge=0,
        description="At most this many requests of the class `batch` wait for their turn in one "
        "gateway process.",
    )
    overflow: OverflowSettings | None = Field(
        None,
        description="Requests that this pool cannot serve in time go to another pool by these "
        "rules. With null they go nowhere else.",
    )
    max_ongoing_requests: int = Field(
        256,
        ge=1,
        description="A replica works on at most this many requests at once. Ray Serve holds back "
        "the rest.",
    )
    max_queued_requests: int = Field(
        1024,
        ge=1,
        description="A gateway process holds back at most this many requests for this pool. "
        "Beyond that a request is refused with 429.",
    )
    resources: ReplicaResources = Field(
        default_factory=ReplicaResources, description="Ray reserves this for each replica."
    )
    prefill_rate: float | None = Field(
        None,
        gt=0,
        description="One replica computes this many prompt tokens per second. The prediction of "
        "time to first token starts from it, until the replica has seen requests. With null it "
        "starts from a built-in guess.",
    )
    policy: PolicyName = Field(
        "prefix",
        description="This policy chooses the replica of each request. `prefix` takes the lowest "
        "predicted time to first token and counts the prefixes that a replica has cached. "
        "`session` takes the same replica for the same value of `session_header`. The others do "
        "what their names say.",
    )
    shadow_policy: PolicyName | None = Field(
        None,
        description="The choices of this policy are scored and counted beside those of `policy`, "
        "but not followed. With null there is none.",
    )
    session_header: Annotated[
        str, AfterValidator(rules.usable_header), schema.written_as(rules.HEADER)
    ] = Field(
        "x-session-id",
        description="This request header names the session for the policy `session`.",
    )
    segment_tokens: int = Field(
        128,
        ge=16,
        le=65536,
        description="One entry of the prefix index stands for this many prompt tokens, rounded "
        "to a multiple of the engine's KV block. A smaller value finds shorter prefixes, a "
        "larger one takes less memory in Redis.",
    )
    env: Mapping[
        Annotated[str, AfterValidator(rules.usable_env_name), schema.written_as(rules.ENV_NAME)],
        Annotated[str, AfterValidator(rules.usable_env_value)],
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_env(),
        description="The engine's process gets these environment variables. The values are "
        "strings and may hold ${VARIABLE}.",
    )
    engine_args: Annotated[
        Mapping[Annotated[str, AfterValidator(rules.free_engine_arg)], JsonValue],
        BeforeValidator(rules.no_engine_arg_twice),
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_engine_args(),
        description="The engine gets these flags of vLLM, written without the leading -- and "
        "with - or _. Examples are quantization, tensor_parallel_size, kv_cache_dtype, "
        "speculative_config and lora_modules.",
    )
    speculation: SpeculationSettings | None = Field(
        None,
        description="The engines use speculative decoding so, in pools whose `engine_args` have "
        "a speculative_config. With null the defaults hold.",
    )
    quality: Quality | None = Field(
        None,
        description="The weights must prove this before they are served. The proof is the report "
        "that `antefix evaluate` writes into their folder; a report about other weights does not "
        "count. With null nothing has to be proved.",
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
        raise_all(rules.broken_by_pool(self.engine_args, self.resources.gpus))
        raise_all(rules.broken_by_objectives(self))
        raise_all(broken_by_speculation(self.speculation, self.engine_args))
        raise_all(broken_by_quality(self.quality, self.model))
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
        description="The name of the fleet may hold lower case letters, digits and hyphens, 63 "
        "at most."
    )
    gateway: GatewaySettings = Field(
        default_factory=GatewaySettings,
        description="The gateways serve the OpenAI API with these settings and limits.",
    )
    redis: RedisSettings = Field(
        default_factory=RedisSettings,
        description="The prefix index and the load board are kept in this Redis.",
    )
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings,
        description="Prometheus finds the metrics of a node's gateways and engines here.",
    )
    pools: Annotated[Mapping[DnsLabel, Pool], Field(min_length=1)] = Field(
        description="The fleet has these pools of engines, by name."
    )
    gpu_budget: float | None = Field(
        None,
        gt=0,
        description="All pools together use at most this many GPUs. The pool that needs them "
        "most gets them first. With null there is no limit but each pool's `max_replicas`.",
    )
    surge_percent: int = Field(
        0,
        ge=0,
        le=100,
        description="A rollout by Ray Serve may start this many replicas, in percent of the "
        "number there should be, before it stops old ones. It needs free GPUs for them. With 0 "
        "it stops old ones first, a fifth at a time.",
    )

    @model_validator(mode="after")
    def _pools_fit_together(self) -> Self:
        raise_all(rules.broken_by_pools(self.model_dump()["pools"]))
        raise_all(rules.broken_by_budget(self))
        raise_all(rules.broken_by_ports(self))
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
