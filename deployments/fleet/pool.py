"""A pool of engines in a fleet file: model, parallelism, resources, SLO, arguments.

Like all of the fleet's settings it is frozen, unknown keys are rejected, and null selects the
default. Times are seconds, sizes bytes, rates tokens per second.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    model_validator,
)

from common.section import Section, raise_all
from deployments.fleet.reach import Reach, Withheld
from deployments.fleet.settings import fleet_rules as rules
from deployments.fleet.settings import fleet_schema as schema
from deployments.fleet.settings.adapter_settings import (
    AdapterSettings,
    broken_by_adapters,
    with_slots,
)
from deployments.fleet.settings.fleet_rules import EMBEDDED_MODEL, EMBEDDED_MODEL_NAME
from deployments.fleet.settings.hung_engine import HungEngine
from deployments.fleet.settings.kv_tiers import (
    KvTiers,
    PrefillSettings,
    broken_by_kv_tiers,
)
from deployments.fleet.settings.objectives import (
    Autoscaling,
    Objectives,
    OverflowSettings,
)
from deployments.fleet.settings.quality import Quality, broken_by_quality
from deployments.fleet.settings.resume import (
    RESUME,
    RESUME_PROOF,
    ResumeMode,
    broken_by_resume,
)
from deployments.fleet.settings.speculation_settings import (
    SpeculationSettings,
    broken_by_speculation,
)
from router.choice.policies import PolicyName
from router.index.cached_blocks import Tier


class ReplicaResources(Section):
    """What Ray reserves for one replica."""

    cpus: float = Field(
        1.0, ge=0, description="The number of CPU cores that each replica reserves."
    )
    gpus: float | None = Field(
        None,
        ge=0,
        description="The number of GPUs that each replica reserves. With a fraction, several "
        "replicas share a GPU. If null, a replica reserves as many GPUs as its parallelism needs, "
        "or none with vLLM's CPU build.",
    )
    accelerator_type: str | None = Field(
        None,
        min_length=1,
        description="The required GPU model, by the name that Ray uses, such as A100.",
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="The names and amounts of the custom Ray resources that each replica reserves.",
    )


class Price(Section):
    """What a pool's tokens cost, per million, in any one currency."""

    prompt: float = Field(ge=0, description="The price per million computed prompt tokens.")
    cached: float | None = Field(
        None,
        ge=0,
        description="The price per million cached prompt tokens. If null, it equals `prompt`.",
    )
    output: float = Field(ge=0, description="The price per million generated tokens.")


class Pool(Section):
    """Replicas of one engine, serving one model."""

    model: Annotated[
        str,
        AfterValidator(rules.usable_model),
        schema.written_as_and_not(
            rules.HUGGING_FACE_ID, rules.PATH, refused=rules.GGUF, remedy=rules.GGUF_REMEDY
        ),
        Reach.POOL,
    ] = Field(
        description=f"The model that the engines serve: `{EMBEDDED_MODEL}` "
        "(SmolLM2-135M-Instruct, 93 MB from the package index), a Hugging Face id, or a path."
    )
    served_model_name: Annotated[
        str,
        AfterValidator(rules.usable_model_name),
        schema.written_as(rules.MODEL_NAME),
        Reach.POOL,
    ] = Field(
        "",
        validate_default=True,
        description="The name that requests use in `model`. The default is the last part of the "
        f"model's id or path, or {EMBEDDED_MODEL_NAME} for the embedded model.",
    )
    replicas: Annotated[int, Reach.HOT] = Field(
        1,
        ge=1,
        description="The number of engines that serve traffic. With `autoscaling`, it is only the "
        "initial number.",
    )
    warm_replicas: Annotated[int, Reach.HOT] = Field(
        0,
        ge=0,
        description="The number of additional engines that are loaded and idle. A gateway promotes "
        "one when the SLO would be missed without it.",
    )
    hung_engine: Annotated[HungEngine | None, Reach.HOT] = Field(
        None,
        description="What happens to an engine that hangs. With `suspect`, new requests avoid "
        "it until it makes progress, if another replica can serve them. With `restart`, it is also "
        "stopped and replaced. If null, the value is `restart` on CPUs and `suspect` on GPUs, "
        "where hang detection has hardly been tried.",
    )
    autoscaling: Annotated[Autoscaling | None, Reach.HOT] = Field(
        None,
        description="The limits within which the number of replicas follows the load. If null, the "
        "number is always `replicas`.",
    )
    slo: Annotated[Objectives, Reach.HOT] = Field(
        default_factory=Objectives,
        description="The latency objectives of the pool. A request that is predicted to miss "
        "`ttft_s`, or to run where streams miss `tpot_s`, is queued, overflows or is rejected. "
        "Without objectives, every request is admitted. "
        "Instead of a mapping, `default` selects the targets of Antefix's SLO file (docs/slo.md), "
        "and a path selects the targets of another SLO file.",
    )
    price: Annotated[Price | None, Reach.HOT] = Field(
        None,
        description="Prices in any currency. They are used for the metric that shows the cost per "
        "tenant.",
    )
    batch_queue: Annotated[int, Reach.HOT] = Field(
        256,
        ge=0,
        description="The maximum number of `batch` requests that are queued in each gateway "
        "process.",
    )
    overflow: Annotated[OverflowSettings | None, Reach.HOT] = Field(
        None,
        description="Sends requests that this pool cannot serve in time to another pool.",
    )
    max_ongoing_requests: Annotated[int, Reach.POOL] = Field(
        256,
        ge=1,
        description="The maximum number of requests that a replica serves at the same time. Ray "
        "Serve queues further requests.",
    )
    max_queued_requests: Annotated[int, Reach.POOL] = Field(
        1024,
        ge=1,
        description="The maximum number of requests that a gateway process queues for this pool. "
        "If the queue is full, the gateway rejects the next request with 429. If tenants take "
        "turns, it instead rejects the newest request of the tenant that has the most requests "
        "queued.",
    )
    resources: Annotated[ReplicaResources, Reach.POOL] = Field(
        default_factory=ReplicaResources,
        description="The resources that Ray reserves for each replica.",
    )
    prefill_rate: Annotated[float | None, Reach.POOL] = Field(
        None,
        gt=0,
        description="The number of prompt tokens that a replica computes per second. Predictions "
        "of TTFT use this value until the replica has served requests. If null, they use a "
        "built-in estimate until then.",
    )
    policy: Annotated[PolicyName, Reach.HOT] = Field(
        "prefix",
        description="The policy that chooses the replica of each request. `prefix` chooses the "
        "lowest cost, based on predicted TTFT with cached prefixes. `session` always chooses the "
        "same replica for the same value of `session_header`. See docs/routing.md for "
        "all policies.",
    )
    shadow_policy: Annotated[PolicyName | None, Reach.HOT] = Field(
        None,
        description="A second policy whose choices are computed and counted, but not followed.",
    )
    session_header: Annotated[
        str, AfterValidator(rules.usable_header), schema.written_as(rules.HEADER), Reach.HOT
    ] = Field(
        "x-session-id",
        description="The request header that identifies the session for the policy `session`.",
    )
    segment_tokens: Annotated[int, Reach.POOL] = Field(
        128,
        ge=16,
        le=65536,
        description="The number of prompt tokens per entry of the prefix index. It is rounded to a "
        "multiple of the KV block size. Smaller entries find shorter prefixes, and larger entries "
        "save memory in Redis.",
    )
    env: Annotated[
        Mapping[
            Annotated[
                str, AfterValidator(rules.usable_env_name), schema.written_as(rules.ENV_NAME)
            ],
            Annotated[str, AfterValidator(rules.usable_env_value)],
        ],
        Reach.POOL,
        Withheld.FROM_GATEWAYS,
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_env(),
        description="The environment variables of the engine. The values are strings and may "
        "contain ${VARIABLE}.",
    )
    engine_args: Annotated[
        Mapping[Annotated[str, AfterValidator(rules.free_engine_arg)], JsonValue],
        BeforeValidator(rules.no_engine_arg_twice),
        Reach.POOL,
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_engine_args(),
        description="The vLLM flags of the engine. On CPUs, the default dtype is bfloat16 if the "
        "CPU has AMX or AVX512_BF16, and otherwise float32. For quantized models, vLLM's default "
        "applies.",
    )
    kv_tiers: Annotated[KvTiers | None, Reach.POOL] = Field(
        None,
        description="Tiers of the KV cache below the device. A prefix that the device had to evict "
        "is then loaded instead of computed. If null, there are none.",
    )
    prefill: Annotated[PrefillSettings | None, Reach.HOT] = Field(
        None,
        description="Another pool that computes prompts for this one, whose replicas then pull "
        "them. If null, its replicas compute all of their prompts.",
    )
    adapters: Annotated[AdapterSettings | None, Reach.POOL] = Field(
        None,
        description="Allows LoRA adapters to be loaded while the pool serves. If null, none can be "
        "loaded.",
    )
    allowed_xargs: Annotated[
        Sequence[
            Annotated[
                str,
                AfterValidator(rules.usable_xarg),
                schema.other_than(rules.XARGS_OF_ENGINES),
            ]
        ],
        Reach.HOT,
    ] = Field(
        default_factory=list,
        description="The keys that requests may use in `vllm_xargs`, which vLLM passes to its "
        "plug-ins.",
    )
    max_media_pixels: Annotated[int, Reach.POOL] = Field(
        67108864,
        ge=1,
        description="The maximum number of pixels in all images and video frames of a request "
        "together. An engine decodes a pixel into three or more bytes.",
    )
    speculation: Annotated[SpeculationSettings | None, Reach.POOL] = Field(
        None,
        description="Settings of speculative decoding, for pools that have a speculative_config in "
        "`engine_args`.",
    )
    resume: Annotated[ResumeMode | None, Reach.POOL] = RESUME
    resume_proof: Annotated[str, Reach.POOL] = RESUME_PROOF
    quality: Annotated[Quality | None, Reach.POOL, Withheld.FROM_GATEWAYS] = Field(
        None,
        description="The limits that the weights must meet before they are served. The proof is "
        "the report that `antefix evaluate` or `antefix quality import` writes into the folder of "
        "the weights. A report about other weights does not count.",
    )

    @model_validator(mode="before")
    @classmethod
    def _named_after_the_model(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("served_model_name") is not None:
            return data
        # a name for a pool without a usable model, so that only the model is refused
        return {**data, "served_model_name": rules.name_of_model(data.get("model")) or "unnamed"}

    @model_validator(mode="before")
    @classmethod
    def _with_slots_for_adapters(cls, data: Any) -> Any:
        return with_slots(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _resources_fit(self) -> Self:
        raise_all(rules.broken_by_pool(self.engine_args, self.resources.gpus))
        raise_all(rules.broken_by_objectives(self))
        raise_all(broken_by_speculation(self.speculation, self.engine_args))
        raise_all(broken_by_kv_tiers(self.kv_tiers, self.engine_args))
        raise_all(broken_by_quality(self.quality, self.model))
        raise_all(broken_by_resume(self))
        raise_all(broken_by_adapters(self))
        return self

    @property
    def revision(self) -> str | None:
        """The model's revision, if the engine arguments have one."""
        revision = self.engine_args.get("revision")
        return revision if isinstance(revision, str) else None

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers of the engines' KV caches below the device."""
        if self.kv_tiers is None:
            return ()
        return (Tier.HOST, Tier.DISK) if self.kv_tiers.disk else (Tier.HOST,)

    @property
    def is_scaled(self) -> bool:
        """Whether the autoscaler sets the number of active replicas."""
        return self.autoscaling is not None or self.warm_replicas > 0

    @property
    def first_replicas(self) -> int:
        """Initial number of engines, including warm ones."""
        wanted = self.replicas + self.warm_replicas
        if self.autoscaling is None:
            return wanted
        return max(self.autoscaling.min_replicas, min(wanted, self.autoscaling.max_replicas))

    @property
    def least_replicas(self) -> int:
        """Minimum number of engines under autoscaling; without it, the fixed number."""
        return self.autoscaling.min_replicas if self.autoscaling else self.first_replicas

    @property
    def most_replicas(self) -> int:
        """Maximum number of engines at the same time, including warm ones."""
        return self.autoscaling.max_replicas if self.autoscaling else self.first_replicas

    @property
    def tensor_parallel(self) -> int:
        """GPUs over which each layer is split."""
        return rules.parallel_size(self.engine_args, "tensor_parallel_size")

    @property
    def pipeline_parallel(self) -> int:
        """Stages into which the layers are split."""
        return rules.parallel_size(self.engine_args, "pipeline_parallel_size")

    @property
    def world_size(self) -> int:
        """Processes of one replica's engine, each with a separate GPU."""
        return rules.world_size(self.engine_args)

    @property
    def lora_names(self) -> tuple[str, ...]:
        """Names of the LoRA adapters served with the model, as requests use them."""
        return rules.lora_names(self.engine_args)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every name in a request's `model` that selects this pool, the model's first."""
        return (self.served_model_name, *self.lora_names)
