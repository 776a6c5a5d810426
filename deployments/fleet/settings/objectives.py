"""Sections of a fleet file about objectives, overflow, autoscaling and tenants."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from autoscaling.admission.overflow import OverflowRules
from autoscaling.slo import PriorityClass, Slo
from common.section import Section, refuse
from common.yaml_file import FileError
from observability.alerts import slo_file as slo

DEFAULT = "default"


class Objectives(Section):
    """The objectives of a pool. A class without an objective is never rejected.

    A word instead of the section selects the targets of an SLO file
    (`observability.alerts.slo_file`): `default` the built-in file, a path another one, relative to
    the fleet file's folder.
    """

    interactive: slo.Target | None = Field(
        None,
        description="The objectives of interactive requests. A request is interactive unless it "
        "names another class.",
    )
    batch: slo.Target | None = Field(
        None,
        description="The objectives of the class `batch`, whose requests may be queued.",
    )
    throughput: slo.Throughput | None = Field(
        None,
        description="Enables an alert about busy replicas that generate too few tokens.",
    )

    @model_validator(mode="before")
    @classmethod
    def _targets_of_an_slo_file(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, str):
            return data
        folder: Path = (info.context or {}).get("folder", Path())
        try:
            file = slo.load(None if data == DEFAULT else folder / data)
        except FileError as error:
            *others, last = error.faults
            said = "".join(f"{fault.text(error.source)} " for fault in others)
            said += last.without_remedy(error.source)
            raise refuse(f"no usable SLO file: {said}", last.remedy) from None
        targets = {name: target.model_dump() for name, target in file.targets.items()}
        return {**targets, "throughput": file.throughput}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "anyOf": [
                super().__get_pydantic_json_schema__(core_schema, handler),
                {"type": "string", "minLength": 1},
            ]
        }

    def by_class(self) -> dict[PriorityClass, Slo]:
        """The objectives that are set, by class."""
        objectives: dict[PriorityClass, slo.Target | None] = {
            "interactive": self.interactive,
            "batch": self.batch,
        }
        return {name: Slo(of.ttft_s, of.tpot_s, of.e2e_s) for name, of in objectives.items() if of}


class OverflowSettings(Section):
    """A smaller model that answers when this pool cannot meet its SLO."""

    to: str = Field(description="The pool that answers instead.")
    enter: float = Field(
        1.0,
        gt=0,
        description="Overflow begins when the best predicted TTFT exceeds the SLO times this "
        "factor.",
    )
    leave: float = Field(
        0.7,
        ge=0,
        description="Overflow ends when the best predicted TTFT is at most the SLO times this "
        "factor.",
    )
    max_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The maximum share of a tenant's requests that may overflow, measured over "
        "about a minute. It applies while the pool has a replica.",
    )

    def rules(self) -> OverflowRules:
        return OverflowRules(self.enter, self.leave, self.max_share)


class Autoscaling(Section):
    """The allowed number of replicas, and how fast it may change."""

    min_replicas: int = Field(
        1,
        ge=0,
        description="The minimum number of replicas. If 0, the pool has no replicas while it is "
        "idle. The first request then overflows, waits for a start, or is rejected with "
        "`Retry-After`.",
    )
    max_replicas: int = Field(
        ge=1, description="The maximum number of replicas, including warm ones."
    )
    startup_s: float = Field(
        120.0,
        gt=0,
        description="The expected time in seconds that a replica takes to start. It applies until "
        "a start has been measured.",
    )
    downscale_hold_s: float = Field(
        30.0,
        ge=0,
        description="A replica is removed if it has not been needed for this many seconds.",
    )
    idle_s: float = Field(
        300.0,
        gt=0,
        description="If `min_replicas` is 0, the last replica is removed after this many seconds "
        "without a request.",
    )


class TenantLimits(Section):
    """Limits of a tenant, over all gateways together."""

    requests_per_minute: int | None = Field(
        None,
        ge=1,
        description="The maximum number of requests that are admitted within any 60 seconds.",
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="The maximum number of tokens that are used within any 60 seconds. A request "
        "first reserves the tokens of its prompt and its longest possible answer. Unused tokens "
        "are released when it ends.",
    )
    concurrent_requests: int | None = Field(
        None,
        ge=1,
        description="The maximum number of requests in progress at the same time, including queued "
        "ones.",
    )


class Tenant(Section):
    """The rights of an API key's tenant."""

    priority: Literal["interactive", "batch"] = Field(
        "interactive",
        description="The highest priority class that the tenant's requests may have. It is also "
        "their default.",
    )
    cache_group: str | None = Field(
        None,
        min_length=1,
        description="The name of a group of tenants that share prefix caches. Tenants of a group "
        "can find out which prompts the others sent. If null, the tenant shares its cache with no "
        "other tenant.",
    )
    policy_header: bool = Field(
        False,
        description="Whether the tenant's requests may select a routing policy with the header "
        "`x-antefix-policy`. Operators may always select a policy. The same applies to a tenant "
        "that is the only one with keys. Requests with a key that has `policy=no` may never select "
        "one.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        description="The tenant's relative share of engine time when the pool is full.",
    )
    operator: bool = Field(
        False,
        description="Whether the tenant is an operator. Operators can see the decisions of every "
        "tenant at `/antefix/`, and the addresses and loads of replicas. Other tenants can see "
        "only their own decisions and queues. A tenant that is the only one with keys can also see "
        "addresses and loads.",
    )
    limits: TenantLimits = Field(
        default_factory=TenantLimits,
        description="The limits for the tenant's requests to all models together.",
    )
    model_limits: Mapping[Annotated[str, Field(min_length=1)], TenantLimits] = Field(
        default_factory=dict,
        description="The limits for the tenant's requests to single models, by the name that a "
        "request uses.",
    )
    engine_priority: bool = Field(
        False,
        description="Whether the tenant's requests may set vLLM's `priority`. It moves them ahead "
        "of others if the `scheduling_policy` of the engines is `priority`.",
    )
