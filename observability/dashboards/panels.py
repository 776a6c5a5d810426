"""Boards and panels as data, and how they become dashboards of Grafana.

A panel is one entry of a row: its title, its queries, their unit and colors, and a description.
`make observability` writes the dashboards. They have no fixed UID, so that they can be pushed to
any Grafana: the data source is a variable, and dashboards link to each other by their tag.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Self, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    prometheus,
    stat,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from observability.alerts.slo_file import SloFile
from observability.dashboards.levels import FINE, Step, Steps, resolved
from observability.dashboards.queries import labels, legend

TAG = "antefix"
DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Grafana's names of units: a share of 1, and a rate of tokens.
SHARE, TOKENS_PER_S = "percentunit", "si:tok/s"

# One expression, whose series are named after their labels, or several by the name of the series.
Queries = str | Mapping[str, str]
_LETTERS = "ABCDEFGHIJ"
_Framed = TypeVar("_Framed", timeseries.Panel, stat.Panel, bargauge.Panel, table.Panel)


@dataclass(frozen=True)
class Panel(ABC):
    """What all panels have. `span`: the width, of 24."""

    title: str
    _: KW_ONLY
    description: str = ""
    span: int = 8

    def about(self, description: str) -> Self:
        """Return the panel with its description, which says what it shows and what is good."""
        return replace(self, description=description)

    @abstractmethod
    def builder(self, slo: SloFile) -> Builder[model.Panel]: ...

    def _framed(self, panel: _Framed, height: int) -> _Framed:
        return (
            panel.title(self.title)
            .description(self.description)
            .datasource(DATASOURCE)
            .span(self.span)
            .height(height)
        )


@dataclass(frozen=True)
class Graph(Panel):
    """Series over time. `dashed`: a regex of series that are limits rather than measurements.
    `top`: the end of the axis."""

    queries: Queries
    unit: str = "none"
    steps: Steps = FINE
    _: KW_ONLY
    stacked: bool = False
    top: float | None = None
    dashed: str | None = None

    def builder(self, slo: SloFile) -> timeseries.Panel:
        steps = resolved(self.steps, slo)
        mode = shapes.StackingMode.NORMAL if self.stacked else shapes.StackingMode.NONE
        panel = (
            self._framed(timeseries.Panel(), height=8)
            .unit(self.unit)
            .axis_soft_min(0)
            .thresholds(_thresholds(steps))
            .line_width(1)
            .fill_opacity(30 if self.stacked else 0)
            .show_points(shapes.VisibilityMode.NEVER)
            .stacking(common.StackingConfig().mode(mode))
            .legend(
                common.VizLegendOptions()
                .display_mode(shapes.LegendDisplayMode.LIST)
                .placement(shapes.LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            .tooltip(
                common.VizTooltipOptions()
                .mode(shapes.TooltipDisplayMode.MULTI)
                .sort(shapes.SortOrder.DESCENDING)
            )
        )
        for target in _targets(self.queries):
            panel = panel.with_target(target.range())
        if self.top is not None:
            panel = panel.max(self.top)
        if self.dashed is not None:
            line = model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 8]})
            panel = panel.override_by_regexp(self.dashed, [line])
        if len(steps) > 1:
            style = common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED)
            panel = panel.thresholds_style(style)
        return panel


@dataclass(frozen=True)
class Number(Panel):
    """One figure with its recent course. `words`: text and color to show for a value."""

    expr: str
    unit: str = "none"
    steps: Steps = FINE
    _: KW_ONLY
    span: int = 4
    words: Mapping[str, tuple[str, str]] | None = None

    def builder(self, slo: SloFile) -> stat.Panel:
        panel = (
            self._framed(stat.Panel(), height=4)
            .unit(self.unit)
            .thresholds(_thresholds(resolved(self.steps, slo)))
            .graph_mode(shapes.BigValueGraphMode.AREA)
            .color_mode(shapes.BigValueColorMode.VALUE)
            .reduce_options(_last())
            .with_target(_query(self.expr).range())
        )
        if self.words is None:
            return panel
        results = {
            value: model.ValueMappingResult(text=said, color=color)
            for value, (said, color) in self.words.items()
        }
        return panel.mappings([model.ValueMap(options=results)])


@dataclass(frozen=True)
class Bars(Panel):
    """One bar per series, over the dashboard's whole time range."""

    queries: Queries
    unit: str = "none"

    def builder(self, slo: SloFile) -> bargauge.Panel:
        panel = (
            self._framed(bargauge.Panel(), height=8)
            .unit(self.unit)
            .min(0)
            .thresholds(_thresholds(FINE))
            .orientation(shapes.VizOrientation.HORIZONTAL)
            .reduce_options(_last())
        )
        for target in _targets(self.queries):
            panel = panel.with_target(target.instant())
        return panel


@dataclass(frozen=True)
class Column:
    """A figure of a table. All columns of a table have the same labels."""

    title: str
    expr: str
    unit: str = "none"
    steps: Steps = FINE


@dataclass(frozen=True)
class Table(Panel):
    """Figures at the end of the time range, with one row per combination of their labels."""

    columns: Sequence[Column]
    _: KW_ONLY
    span: int = 24

    def builder(self, slo: SloFile) -> table.Panel:
        panel = (
            self._framed(table.Panel(), height=8)
            .thresholds(_thresholds(FINE))
            .cell_height(shapes.TableCellHeight.SM)
        )
        for place, column in enumerate(self.columns):
            target = _query(column.expr, place).instant().format(PromQueryFormat.TABLE)
            properties = {
                "unit": column.unit,
                "thresholds": _thresholds(resolved(column.steps, slo)).build(),
                "custom.cellOptions": {"type": "color-text"},
            }
            panel = panel.with_target(target).override_by_name(
                column.title, [model.DynamicConfigValue(*item) for item in properties.items()]
            )
        # Grafana names the column of query A "Value #A"; with a single query, only "Value".
        names = {f"Value #{_LETTERS[i]}": column.title for i, column in enumerate(self.columns)}
        names["Value"] = self.columns[0].title
        order = [*labels(self.columns[0].expr), *names]
        return panel.transformations(
            [
                model.DataTransformerConfig("merge", options={}),
                model.DataTransformerConfig(
                    "organize",
                    options={
                        "excludeByName": {"Time": True},
                        "indexByName": {name: place for place, name in enumerate(order)},
                        "renameByName": names,
                    },
                ),
            ]
        )


@dataclass(frozen=True)
class Variable:
    """A choice of several or all values of the label `name` of `metric`."""

    name: str
    metric: str
    description: str

    def builder(self) -> build.QueryVariable:
        return (
            build.QueryVariable(self.name)
            .label(self.name)
            .description(self.description)
            .datasource(DATASOURCE)
            .query(f"label_values({self.metric}, {self.name})")
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(model.VariableOption(text=["All"], value=["$__all"]))
        )


_POOL = Variable("pool", "antefix_target_replicas", "Pools of the fleet file.")


@dataclass(frozen=True)
class Board:
    """A dashboard. `explanation`: Markdown that comes first. `rows`: their panels, by title."""

    title: str
    description: str
    explanation: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Sequence[Variable] = ()

    def builder(self, slo: SloFile) -> build.Dashboard:
        """Return the dashboard. It links to the runbooks if the SLO file's `runbook_base` is a URL.
        If that is a path of the repository, the dashboard only names it."""
        result = self._blank()
        where = f"its runbook in `{slo.runbook_base}`"
        if slo.runbook_base.startswith("http"):
            result = result.link(
                build.DashboardLink("Runbooks")
                .type(model.DashboardLinkType.LINK)
                .url(slo.runbook_base)
                .icon("doc")
                .target_blank(True)
            )
            where = f"[its runbook]({slo.runbook_base})"
        said = f"{self.explanation}\n\nAn alert names the page that explains it: {where}."
        about = "What this dashboard shows, what healthy values are, and where to look next."
        result = result.with_panel(
            text.Panel()
            .title("About this dashboard")
            .description(about)
            .mode(TextMode.MARKDOWN)
            .content(said)
            .span(24)
            .height(6)
        )
        for title, panels in self.rows.items():
            result = result.with_row(build.Row(title))
            for panel in panels:
                result = result.with_panel(panel.builder(slo))
        return result

    def _blank(self) -> build.Dashboard:
        """Return the dashboard without panels: its time range, its variables, and the links to the
        others."""
        result = (
            build.Dashboard(self.title)
            .description(self.description)
            .tags([TAG])
            .editable()
            .timezone("browser")
            .time("now-1h", "now")
            .refresh("30s")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .with_variable(
                build.DatasourceVariable("datasource").label("data source").type("prometheus")
            )
            .link(
                build.DashboardLink("Antefix")
                .type(model.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(False)
                .include_vars(True)
                .keep_time(True)
            )
        )
        for variable in (_POOL, *self.variables):
            result = result.with_variable(variable.builder())
        return result


def _targets(queries: Queries) -> Iterator[prometheus.Dataquery]:
    named = {legend(queries): queries} if isinstance(queries, str) else queries
    for place, (name, expr) in enumerate(named.items()):
        yield _query(expr, place).legend_format(name)


def _query(expr: str, place: int = 0) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).ref_id(_LETTERS[place]).datasource(DATASOURCE)


def _thresholds(steps: Sequence[Step]) -> build.ThresholdsConfig:
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value, color) for value, color in steps])
    )


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])
