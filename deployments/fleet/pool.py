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
from deployments.fleet.settings import fleet_rules as rules
from deployments.fleet.settings import fleet_schema as schema
from deployments.fleet.settings.adapters import AdapterSettings, broken_by_adapters, with_slots
from deployments.fleet.settings.fleet_rules import EMBEDDED_MODEL, EMBEDDED_MODEL_NAME
from deployments.fleet.settings.hung_engine import HungEngine
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
from deployments.fleet.settings.speculation import SpeculationSettings, broken_by_speculation
from router.policies import PolicyName


class ReplicaResources(Section):
    """What Ray reserves for one replica."""

    cpus: float = Field(1.0, ge=0, description="A replica reserves this many CPU cores.")
    gpus: float | None = Field(
        None,
        ge=0,
        description="A replica reserves this many GPUs; a fraction shares one. With null it "
        "reserves what its parallelism uses, or none with vLLM's CPU build.",
    )
    accelerator_type: str | None = Field(
        None,
        min_length=1,
        description="The GPUs must be of this kind, by Ray's name for it, such as A100.",
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="A replica reserves these custom Ray resources, by name and amount.",
    )


class Price(Section):
    """What a pool's tokens cost, per million, in any one currency."""

    prompt: float = Field(ge=0, description="Price of a million computed prompt tokens.")
    cached: float | None = Field(
        None,
        ge=0,
        description="Price of a million cached prompt tokens. With null it is `prompt`.",
    )
    output: float = Field(ge=0, description="Price of a million generated tokens.")


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
        description="Requests have this name in `model`. The default is the last part "
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
        description="This many more engines are loaded and idle. A gateway promotes one when the "
        "SLO would be missed without it.",
    )
    prestart: bool = Field(
        False,
        description="On each node with an engine of this pool, processes that have imported vLLM "
        "wait, so the next engine starts faster. They use about 1 GB of memory and "
        "no GPU memory. None waits if more than 90 % of the memory would be used.",
    )
    hung_engine: HungEngine | None = Field(
        None,
        description="`suspect`: a hung engine gets no requests that another replica can serve, "
        "until it makes progress. `restart`: it is also ended and replaced. With "
        "null it is `restart` on CPUs and `suspect` on GPUs, where hang detection "
        "has hardly been tried.",
    )
    autoscaling: Autoscaling | None = Field(
        None,
        description="The number of replicas follows the load within these limits. With null it "
        "is always `replicas`.",
    )
    slo: Objectives = Field(
        default_factory=Objectives,
        description="The pool's latency objective. A request that is predicted to miss it is "
        "queued, overflows or is rejected. Without one, every request is admitted. "
        "`default` instead of a mapping selects the targets of Antefix's SLO file "
        "(docs/slo.md), a path those of another.",
    )
    price: Price | None = Field(
        None,
        description="Prices, in any currency, for the metric of each tenant's cost.",
    )
    batch_queue: int = Field(
        256,
        ge=0,
        description="At most this many `batch` requests are queued in a gateway process.",
    )
    overflow: OverflowSettings | None = Field(
        None,
        description="Requests that this pool cannot serve in time go to another.",
    )
    max_ongoing_requests: int = Field(
        256,
        ge=1,
        description="A replica serves at most this many requests at once. Ray Serve queues the "
        "rest.",
    )
    max_queued_requests: int = Field(
        1024,
        ge=1,
        description="A gateway process queues at most this many requests for this pool. Beyond "
        "that it rejects one with 429: where tenants take turns, the newest of the "
        "tenant with most in the queue.",
    )
    resources: ReplicaResources = Field(
        default_factory=ReplicaResources, description="Ray reserves this for each replica."
    )
    prefill_rate: float | None = Field(
        None,
        gt=0,
        description="A replica computes this many prompt tokens per second. Predictions of TTFT "
        "start from it, or with null from a built-in guess, until the replica has "
        "seen requests.",
    )
    policy: PolicyName = Field(
        "prefix",
        description="This policy chooses the replica of each request. `prefix` takes the lowest "
        "predicted TTFT, which counts cached prefixes. `session` takes the same "
        "replica for the same value of `session_header`.",
    )
    shadow_policy: PolicyName | None = Field(
        None,
        description="This policy's choices are computed and counted, but not followed.",
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
        description="An entry of the prefix index stands for this many prompt tokens, rounded to "
        "a multiple of the KV block. Smaller entries find shorter prefixes, larger "
        "ones save memory in Redis.",
    )
    env: Mapping[
        Annotated[str, AfterValidator(rules.usable_env_name), schema.written_as(rules.ENV_NAME)],
        Annotated[str, AfterValidator(rules.usable_env_value)],
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_env(),
        description="The engine's environment variables. The values are strings and may hold "
        "${VARIABLE}.",
    )
    engine_args: Annotated[
        Mapping[Annotated[str, AfterValidator(rules.free_engine_arg)], JsonValue],
        BeforeValidator(rules.no_engine_arg_twice),
    ] = Field(
        default_factory=dict,
        json_schema_extra=schema.without_reserved_engine_args(),
        description="The engine gets these flags of vLLM. On CPUs, dtype is by default bfloat16 "
        "where the CPU has AMX or AVX512_BF16, otherwise float32; quantized models "
        "keep vLLM's default.",
    )
    adapters: AdapterSettings | None = Field(
        None,
        description="LoRA adapters can be loaded while the pool serves. With null they cannot.",
    )
    allowed_xargs: Sequence[
        Annotated[
            str,
            AfterValidator(rules.usable_xarg),
            schema.other_than(rules.XARGS_OF_ENGINES),
        ]
    ] = Field(
        default_factory=list,
        description="Requests may have only these keys in `vllm_xargs`, which vLLM passes to its "
        "plug-ins.",
    )
    speculation: SpeculationSettings | None = Field(
        None,
        description="Settings of speculative decoding, for pools whose `engine_args` have a "
        "speculative_config.",
    )
    resume: ResumeMode | None = RESUME
    resume_proof: str = RESUME_PROOF
    quality: Quality | None = Field(
        None,
        description="The weights must meet these limits before they are served. The proof is the "
        "report that `antefix evaluate` or `antefix quality import` writes into their "
        "folder; a report about other weights does not count.",
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
