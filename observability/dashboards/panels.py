"""Panels, variables and links of the five dashboards.

Nothing here has a fixed UID, so that a dashboard can be pushed to any Grafana: the data source is a
variable, and dashboards link to each other by their tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

from observability.dashboards.queries import Query

TAG = "antefix"
DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TOKENS_PER_S = "si:tok/s"
GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"

AnyPanel = Builder[model.Panel]
# The lowest value of each colour, lowest first; None: no lower limit.
Step = tuple[float | None, str]
FINE: tuple[Step, ...] = ((None, GREEN),)


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[AnyPanel]


def rising(warn: float, bad: float) -> tuple[Step, ...]:
    """Return steps for values of which low is good."""
    return ((None, GREEN), (warn, ORANGE), (bad, RED))


def falling(bad: float, warn: float) -> tuple[Step, ...]:
    """Return steps for values of which high is good."""
    return ((None, RED), (bad, ORANGE), (warn, GREEN))


def graph(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    span: int = 8,
    steps: Sequence[Step] = FINE,
    stack: shapes.StackingMode = shapes.StackingMode.NONE,
    top: float | None = None,
    dashed: str | None = None,
) -> AnyPanel:
    """Return series over time. `dashed`: a regex of series that are limits rather than
    measurements."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .axis_soft_min(0)
        .thresholds(_thresholds(steps))
        .line_width(1)
        .fill_opacity(0 if stack == shapes.StackingMode.NONE else 30)
        .show_points(shapes.VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(stack))
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
    if len(steps) > 1:
        style = common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds_style(style)
    if top is not None:
        panel = panel.max(top)
    if dashed is not None:
        line = model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 8]})
        panel = panel.override_by_regexp(dashed, [line])
    for number_of, (expr, legend) in enumerate(queries):
        panel = panel.with_target(_query(expr, _letter(number_of)).range().legend_format(legend))
    return panel


def number(
    title: str,
    description: str,
    expr: str,
    unit: str,
    *,
    span: int = 4,
    steps: Sequence[Step] = FINE,
    words: dict[str, tuple[str, str]] | None = None,
) -> AnyPanel:
    """Return one figure with its recent course. `words`: text and colour to show for a value."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .thresholds(_thresholds(steps))
        .graph_mode(shapes.BigValueGraphMode.AREA)
        .color_mode(shapes.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_query(expr, "A").range())
    )
    if words is not None:
        results = {
            value: model.ValueMappingResult(text=said, color=colour)
            for value, (said, colour) in words.items()
        }
        panel = panel.mappings([model.ValueMap(options=results)])
    return panel


def bars(
    title: str, description: str, queries: Sequence[Query], unit: str, *, span: int = 8
) -> AnyPanel:
    """Return one bar per series, over the dashboard's whole time range."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .min(0)
        .thresholds(_thresholds(FINE))
        .orientation(shapes.VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for number_of, (expr, legend) in enumerate(queries):
        panel = panel.with_target(_query(expr, _letter(number_of)).instant().legend_format(legend))
    return panel


@dataclass(frozen=True)
class Column:
    """A figure of a table. All columns of a table have the same labels."""

    title: str
    expr: str
    unit: str = "none"
    steps: Sequence[Step] = FINE


def figures(
    title: str,
    description: str,
    labels: Sequence[str],
    columns: Sequence[Column],
    *,
    span: int = 24,
    height: int = 8,
) -> AnyPanel:
    """Return a table with one row per combination of `labels`, at the end of the time range."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(span)
        .height(height)
        .thresholds(_thresholds(FINE))
        .cell_height(shapes.TableCellHeight.SM)
    )
    # Grafana names the column of query A "Value #A"; with a single query, only "Value".
    names = {f"Value #{_letter(i)}": column.title for i, column in enumerate(columns)}
    names["Value"] = columns[0].title
    order = [*labels, *names]
    for i, column in enumerate(columns):
        panel = panel.with_target(
            _query(column.expr, _letter(i)).instant().format(PromQueryFormat.TABLE)
        ).override_by_name(
            column.title,
            [
                model.DynamicConfigValue("unit", column.unit),
                model.DynamicConfigValue("thresholds", _thresholds(column.steps).build()),
                model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
            ],
        )
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


def label_variable(name: str, metric: str, said: str) -> Builder[model.VariableModel]:
    """Return a variable with several or all values of the label `name` of `metric`."""
    return (
        build.QueryVariable(name)
        .label(name)
        .description(said)
        .datasource(DATASOURCE)
        .query(f"label_values({metric}, {name})")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(text=["All"], value=["$__all"]))
    )


def board(
    title: str,
    description: str,
    explanation: str,
    rows: Sequence[Row],
    *,
    runbooks: str,
    variables: Sequence[Builder[model.VariableModel]] = (),
) -> build.Dashboard:
    """Return a dashboard. `explanation`: Markdown that comes first.

    `runbooks`: the place of alerts' explanations: a link if it is a URL, a hint if it is a path of
    the repository.
    """
    if runbooks.startswith("http"):
        where = f"[its runbook]({runbooks})"
    else:
        where = f"its runbook in `{runbooks}`"
    note = f"{explanation}\n\nAn alert names the page that explains it: {where}."
    result = _blank(title, description, runbooks)
    for variable in variables:
        result = result.with_variable(variable)
    result = result.with_panel(
        text.Panel()
        .title("About this dashboard")
        .description("What this dashboard shows, what healthy values are, and where to look next.")
        .mode(TextMode.MARKDOWN)
        .content(note)
        .span(24)
        .height(6)
    )
    for row in rows:
        result = result.with_row(build.Row(row.title))
        for panel in row.panels:
            result = result.with_panel(panel)
    return result


def _blank(title: str, description: str, runbooks: str) -> build.Dashboard:
    """Return a dashboard without rows: its time range, the variables of all dashboards, and the
    links."""
    result = (
        build.Dashboard(title)
        .description(description)
        .tags([TAG])
        .editable()
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            build.DatasourceVariable("datasource").label("data source").type("prometheus")
        )
        .with_variable(
            label_variable("pool", "antefix_target_replicas", "Pools of the fleet file.")
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
    if not runbooks.startswith("http"):
        return result
    return result.link(
        build.DashboardLink("Runbooks")
        .type(model.DashboardLinkType.LINK)
        .url(runbooks)
        .icon("doc")
        .target_blank(True)
    )


def _query(expr: str, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).ref_id(letter).datasource(DATASOURCE)


def _letter(place: int) -> str:
    return "ABCDEFGHIJ"[place]


def _thresholds(steps: Sequence[Step]) -> build.ThresholdsConfig:
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value, colour) for value, colour in steps])
    )
