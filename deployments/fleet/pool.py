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
        description="A replica reserves this many GPUs. A fraction shares one. With null it "
        "reserves the number that the engine's parallelism uses, and none with vLLM's CPU build.",
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
        description="This many more engines are loaded and idle. A gateway promotes one when the "
        "SLO would be missed without it. A spike then does not wait for a model to load.",
    )
    prestart: bool = Field(
        False,
        description="On each node with an engine of this pool, processes that have imported vLLM "
        "wait for the next engine, which then starts faster. They use about 1 GB of the node's "
        "memory and no GPU memory. None waits where more than 90 % of the memory would be used.",
    )
    hung_engine: HungEngine | None = Field(
        None,
        description="This selects what happens to a hung engine. `suspect`: it gets no requests "
        "while another replica can serve them, until it makes progress. `restart`: it is also "
        "ended, and another one starts. With null it is `restart` on CPUs and `suspect` on GPUs, "
        "where hang detection has not been tried.",
    )
    autoscaling: Autoscaling | None = Field(
        None,
        description="The number of replicas follows the load within these limits. With null it "
        "is always `replicas`.",
    )
    slo: Objectives = Field(
        default_factory=Objectives,
        description="This is the pool's latency objective. A request that is predicted to miss it "
        "is queued, overflows or is rejected. Without an objective every request is admitted. "
        "Instead of a mapping, the word `default` selects the targets of the SLO file that ships "
        "with Antefix (docs/slo.md). A path selects those of another SLO file.",
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
        "rules. With null they never do.",
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
        "that a request is rejected with 429; where tenants take turns, the newest request of the "
        "tenant with most in the queue.",
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
        description="The choices of this policy are computed and counted, but not followed. With "
        "null there is none.",
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
        "speculative_config and lora_modules. On CPUs, dtype is by default bfloat16 where the CPU "
        "has AMX or AVX512_BF16, otherwise float32; quantized models keep vLLM's default.",
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
        description="Requests may hold these keys in `vllm_xargs`, which vLLM passes to its "
        "plug-ins. Any other is rejected.",
    )
    speculation: SpeculationSettings | None = Field(
        None,
        description="These settings control speculative decoding in pools whose `engine_args` "
        "have a speculative_config. With null the defaults apply.",
    )
    resume: ResumeMode | None = RESUME
    resume_proof: str = RESUME_PROOF
    quality: Quality | None = Field(
        None,
        description="The weights must meet these limits before they are served. The proof is the "
        "report that `antefix evaluate` or `antefix quality import` writes into their folder; a "
        "report about other weights does not count. With null there is no limit.",
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
