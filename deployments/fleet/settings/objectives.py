"""Sections of a fleet file about objectives, overflow, autoscaling and tenants."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from autoscaling.overflow import OverflowRules
from autoscaling.slo import PriorityClass, Slo
from common.section import Section, refuse
from common.yaml_file import FileError
from observability import slo

DEFAULT = "default"


class Objectives(Section):
    """The objectives of a pool. A class without an objective is never rejected.

    A word instead of the section selects the targets of an SLO file (`observability.slo`):
    `default` the built-in file, a path another one, relative to the fleet file's folder.
    """

    interactive: slo.Target | None = Field(
        None,
        description="The objective of interactive requests: all that name no other class.",
    )
    batch: slo.Target | None = Field(
        None,
        description="The objective of the class `batch`, whose requests may be queued.",
    )
    throughput: slo.Throughput | None = Field(
        None,
        description="An alert about busy replicas that generate few tokens.",
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

    to: str = Field(description="This pool answers instead.")
    enter: float = Field(
        1.0,
        gt=0,
        description="Overflow begins when the best predicted TTFT exceeds this many times the SLO.",
    )
    leave: float = Field(
        0.7,
        ge=0,
        description="Overflow ends when the best predicted TTFT is at most this many times the "
        "SLO.",
    )
    max_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="While the pool has a replica, at most this share of a tenant's requests of "
        "about a minute may overflow.",
    )

    def rules(self) -> OverflowRules:
        return OverflowRules(self.enter, self.leave, self.max_share)


class Autoscaling(Section):
    """The allowed number of replicas, and how fast it may change."""

    min_replicas: int = Field(
        1,
        ge=0,
        description="The pool has at least this many replicas. With 0 it has none while idle: "
        "the first request overflows, waits for a start, or is rejected with "
        "`Retry-After`.",
    )
    max_replicas: int = Field(
        ge=1, description="The pool has at most this many replicas, warm ones included."
    )
    startup_s: float = Field(
        120.0,
        gt=0,
        description="A replica is expected to start in this many seconds, until a start has been "
        "measured.",
    )
    downscale_hold_s: float = Field(
        30.0,
        ge=0,
        description="A replica is removed after fewer have been enough for this many seconds.",
    )
    idle_s: float = Field(
        300.0,
        gt=0,
        description="With `min_replicas` 0, the last replica is removed after this many seconds "
        "without a request.",
    )


class TenantLimits(Section):
    """Limits of a tenant, over all gateways together."""

    requests_per_minute: int | None = Field(
        None,
        ge=1,
        description="At most this many requests are admitted within any minute.",
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="At most this many tokens are used within any minute. A request first "
        "reserves those of its prompt and longest answer, and releases the unused "
        "ones.",
    )
    concurrent_requests: int | None = Field(
        None,
        ge=1,
        description="At most this many requests are in progress at once, including queued ones.",
    )


class Tenant(Section):
    """The rights of an API key's tenant."""

    priority: Literal["interactive", "batch"] = Field(
        "interactive",
        description="The highest priority class of the tenant's requests, and their default.",
    )
    cache_group: str | None = Field(
        None,
        min_length=1,
        description="Tenants of one group share prefix caches, and can find out which prompts "
        "the others sent. With null a tenant shares with no other.",
    )
    policy_header: bool = Field(
        False,
        description="The tenant's requests may select their routing policy with the header "
        "`x-antefix-policy`. Operators and the only tenant with keys always may, "
        "keys with `policy=no` never.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        description="In a full pool, the tenant is due this many times the engine seconds of a "
        "tenant with weight 1.",
    )
    operator: bool = Field(
        False,
        description="An operator sees every tenant's decisions at `/antefix/`, and the addresses "
        "and loads of replicas. Others see only their own decisions and queues, the "
        "only tenant with keys also addresses and loads.",
    )
    limits: TenantLimits = Field(
        default_factory=TenantLimits,
        description="The tenant's requests of all models together may use this much.",
    )
    model_limits: Mapping[Annotated[str, Field(min_length=1)], TenantLimits] = Field(
        default_factory=dict,
        description="The tenant's requests for these models, by the requested names, may use "
        "this much.",
    )
    engine_priority: bool = Field(
        False,
        description="The tenant's requests may set vLLM's `priority`, which puts them before "
        "others where the engines' `scheduling_policy` is `priority`.",
    )
