"""The SLO file: objectives of pools, their rules, and their alerts.

One YAML file in Sloth's vocabulary (https://sloth.dev/specs/default/) with three additional
sections: `targets` and `throughput`, the objectives of pools with `slo: default`, and `levels`,
alerts on a level rather than on a budget. Gateways, autoscaler, Prometheus, Alertmanager and
dashboards all follow it. Reading it gives frozen, consistent data, or raises `FileError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from common.section import Broken, Section, faults_of, raise_all, refuse
from common.yaml_file import Fault, FileError, read_yaml, unreadable

__all__ = [
    "SHIPPED",
    "Alerting",
    "Events",
    "Level",
    "Limit",
    "RatioSlo",
    "Severity",
    "SloFile",
    "Target",
    "Throughput",
    "load",
]

SHIPPED = Path(__file__).parents[1] / "slo.yaml"
WINDOW = "{{.window}}"
PERIOD: Final = "30d"

Model = TypeVar("Model", bound=BaseModel)

Severity = Literal["page", "ticket"]
SEVERITIES: tuple[Severity, ...] = ("page", "ticket")

# How many times faster than planned a budget burns, over a long window and also over a short one:
# Google, The Site Reliability Workbook, chapter 5, table 5-8, for a period of 30 days.
# https://sre.google/workbook/alerting-on-slos/
BURNS: Mapping[Severity, tuple[tuple[float, str, str], ...]] = {
    "page": ((14.4, "1h", "5m"), (6, "6h", "30m")),
    "ticket": ((3, "1d", "2h"), (1, "3d", "6h")),
}


def load(path: Path | None = None) -> SloFile:
    """Return the SLO file at `path`; None: the built-in one. Raises `FileError`."""
    return read(path or SHIPPED, SloFile, SHIPPED.name)


def read(path: Path, model: type[Model], like: str) -> Model:
    """Return the YAML file at `path` as a `model`. Raises `FileError` with every fault of the file.

    `like` is the built-in file.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        file = read_yaml(text, f"Copy observability/{like} and change that")
        faults = list(file.faults)
        if not faults:
            return model.model_validate(file.data)
    except FileNotFoundError:
        faults = [Fault("", None, "no such file", "Write its path, or `default`")]
    except (OSError, UnicodeDecodeError) as error:
        faults = [unreadable(error)]
    except ValidationError as error:
        faults = file.located(faults_of(error, model, file.data, "docs/slo.md"))
    raise FileError(str(path), faults)


def _of_a_pool(query: str) -> str:
    for needed in (WINDOW, "by (pool)"):
        if needed not in query:
            raise refuse(
                f"holds no {needed}", f"Write it as sum by (pool) (rate(a_counter[{WINDOW}]))"
            )
    return query


class Target(Section):
    """The objectives of one priority class of a pool's requests, in seconds."""

    ttft_s: float = Field(
        gt=0,
        description="The objective for the time to first token (TTFT), in seconds. It starts when "
        "the gateway has the complete body of the request.",
    )
    ttft_p50_s: float | None = Field(
        None,
        gt=0,
        description="The objective for the median TTFT, in seconds. Metrics and alerts use it, and "
        "admission ignores it.",
    )
    tpot_s: float | None = Field(
        None,
        gt=0,
        description="The objective for the mean time per output token after the first (TPOT), in "
        "seconds.",
    )
    e2e_s: float | None = Field(
        None,
        gt=0,
        description="The objective for the time from the complete body at the gateway to the end "
        "of the answer, streamed or not, in seconds. Metrics and alerts use it, and admission "
        "ignores it.",
    )

    @model_validator(mode="after")
    def _comes_in_order(self) -> Self:
        if self.ttft_p50_s is not None and self.ttft_p50_s > self.ttft_s:
            message = f"ttft_p50_s {self.ttft_p50_s} is above ttft_s {self.ttft_s}"
            raise refuse(message, "The median cannot have the longer objective: lower ttft_p50_s")
        if self.e2e_s is not None and self.e2e_s < self.ttft_s:
            message = f"e2e_s {self.e2e_s} is below ttft_s {self.ttft_s}"
            raise refuse(message, "An answer cannot end before its first token: raise e2e_s")
        return self


class Throughput(Section):
    """The expected token rate of a busy replica. An idle one is never judged."""

    tokens_per_s: float = Field(
        gt=0,
        description="The alert AntefixThroughputLow fires if a busy replica generates fewer tokens "
        "per second than this. The value has no other effect.",
    )
    running: int = Field(
        ge=1,
        description="The number of running requests, on average over five minutes, from which a "
        "replica counts as busy.",
    )


class Events(Section):
    """Two queries, grouped by pool: the events that missed the objective, and all events."""

    error_query: Annotated[str, AfterValidator(_of_a_pool)]
    total_query: Annotated[str, AfterValidator(_of_a_pool)]


class Sli(Section):
    events: Events


class BurnAlert(Section):
    """One severity of an SLO's alert."""

    disable: bool = False
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


AlertName = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$")]


class Alerting(Section):
    """The alert of an SLO's burning budget."""

    name: AlertName
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    page_alert: BurnAlert = BurnAlert()
    ticket_alert: BurnAlert = BurnAlert()

    def of(self, severity: Severity) -> BurnAlert:
        return self.page_alert if severity == "page" else self.ticket_alert


class RatioSlo(Section):
    """A share of events, in percent, that must be good over the period."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    objective: Annotated[float, Field(gt=0, lt=100)]
    description: str
    labels: Mapping[str, str] = {}
    sli: Sli
    alerting: Alerting

    @property
    def budget(self) -> float:
        """Return the share of events that may be bad, 0 to 1."""
        return round(1 - self.objective / 100, 9)

    def burns(self, severity: Severity) -> tuple[tuple[float, str, str], ...]:
        """Return the `BURNS` that can occur: if all events fail, a budget burns at 1 / budget."""
        if self.alerting.of(severity).disable:
            return ()
        return tuple(burn for burn in BURNS[severity] if burn[0] * self.budget < 1)

    @model_validator(mode="after")
    def _every_alert_can_fire(self) -> Self:
        for severity in SEVERITIES:
            if not self.alerting.of(severity).disable and not self.burns(severity):
                raise refuse(
                    f"its {severity} can never fire: with an objective of {self.objective}% the "
                    f"budget burns at most {1 / self.budget:.3g} times as fast as planned",
                    f"Set alerting.{severity}_alert: {{disable: true}}, or raise the objective",
                )
        return self


class Limit(Section):
    """An alert limit: a query's value that is too high or too low for some time."""

    above: float | None = None
    below: float | None = None
    for_: Annotated[str, Field(alias="for", pattern=r"^[1-9][0-9]*[smhd]$")]

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.above is None and self.below is None:
            raise refuse("neither above nor below", "Give one of them a number")
        if self.above is not None and self.below is not None and self.below >= self.above:
            message = f"below {self.below} and above {self.above} leave nothing between"
            raise refuse(message, "Lower `below`, or raise `above`")
        return self


class Level(Section):
    """An alert on the value of a query. `wanted`: its target range."""

    name: AlertName
    description: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    query: Annotated[str, Field(min_length=1)]
    wanted: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    page: Limit | None = None
    ticket: Limit | None = None

    def limit(self, severity: Severity) -> Limit | None:
        return self.page if severity == "page" else self.ticket

    @model_validator(mode="after")
    def _a_page_is_the_worse(self) -> Self:
        page, ticket = self.page, self.ticket
        if page is None and ticket is None:
            raise refuse("neither page nor ticket", "Set `page`, `ticket` or both")
        if page is None or ticket is None:
            return self
        for end, sign in (("above", 1), ("below", -1)):
            paged, ticketed = getattr(page, end), getattr(ticket, end)
            if paged is not None and ticketed is not None and sign * paged < sign * ticketed:
                message = f"it pages {end} {paged}, before the ticket {end} {ticketed}"
                raise refuse(message, "Swap the two numbers")
        return self


ClassName = Annotated[str, Field(pattern="^(interactive|batch)$")]


class SloFile(Section):
    """The content of the SLO file."""

    version: Literal["prometheus/v1"]
    service: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    labels: Mapping[str, str]
    period: Literal["30d"] = PERIOD
    runbook_base: str = "docs/runbooks"
    targets: Mapping[ClassName, Target]
    throughput: Throughput | None = None
    slos: Annotated[list[RatioSlo], Field(min_length=1)]
    levels: Sequence[Level] = ()

    def alert_names(self) -> list[str]:
        return [slo.alerting.name for slo in self.slos] + [level.name for level in self.levels]

    def level(self, name: str) -> Level | None:
        return next((level for level in self.levels if level.name == name), None)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        slos, levels = list(enumerate(self.slos)), list(enumerate(self.levels))
        names = [(("slos", place, "name"), slo.name) for place, slo in slos]
        alerts = [
            *((("slos", place, "alerting", "name"), slo.alerting.name) for place, slo in slos),
            *((("levels", place, "name"), level.name) for place, level in levels),
        ]
        raise_all([*_unowned(self.labels), *_given_twice(names), *_given_twice(alerts)])
        return self


def _unowned(labels: Mapping[str, str]) -> Iterator[Broken]:
    if not labels.get("owner"):
        yield Broken(
            ("labels", "owner"), ..., "missing", "Set it to the team that receives the alert"
        )


def _given_twice(names: Iterable[tuple[tuple[str | int, ...], str]]) -> Iterator[Broken]:
    seen: set[str] = set()
    for loc, name in names:
        if name in seen:
            yield Broken(loc, name, "another one has this name", "Rename one of the two")
        seen.add(name)
