"""`antefix k8s`: check a Kubernetes cluster before an install, and a release in it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from cli.common.command_line import CommandLine
from cli.common.duration import Duration, duration
from cli.common.exit_codes import ExitCode
from cli.common.options import NoEngineArgs, Output, Release
from cli.common.output import CommandError, answering, is_data, note, print_data
from common.errors import Problem
from common.yaml_file import Fault
from deployments.fleet.fleet_file import (
    CheckedFleet,
    FleetError,
    check_fleet,
    check_text,
)
from deployments.fleet.settings.environment import escaped
from k8s.preflight.findings import PreflightFinding, counted

if TYPE_CHECKING:
    from k8s.client.cluster import Cluster
    from k8s.release.spec_changes import Change
    from k8s.release.status import GroupStatus, Report
    from k8s.release.upgrade_diff import UpgradeDiff

WAIT_TIMEOUT, LOOK_AGAIN_S = Duration(600), 2.0
# length at which a changed value is cut, in characters
_LONGEST_VALUE = 80

k8s = CommandLine(
    help="Check a cluster before installing, and inspect a release. All commands except `accept` "
    "are read-only.",
)

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; default: that of the context.")
]
Context = Annotated[
    str | None, typer.Option("--context", help="Kubeconfig context; default: the current one.")
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig file; default: KUBECONFIG or ~/.kube/config.",
    ),
]
ValuesFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--values",
        "-f",
        metavar="FILE",
        help="Helm values file; repeatable. Later files override earlier ones.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Value that overrides the files, as in Helm; repeatable."
    ),
]
SetString = Annotated[
    list[str] | None,
    typer.Option(
        "--set-string", metavar="KEY=VALUE", help="Like --set, with a string as value; repeatable."
    ),
]


@k8s.command()
def preflight(
    release: Annotated[
        str,
        typer.Argument(help="Name of the release. If it runs, its pods' resources count as free."),
    ] = "antefix",
    values: ValuesFiles = None,
    set_values: Set = None,
    set_strings: SetString = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet", metavar="FILE", help="Fleet file to use instead of `fleet` in the values."
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    no_engine_args: NoEngineArgs = False,
    output: Output = "table",
) -> None:
    """Check a cluster before installing; list problems with remedies. Needs Helm."""
    with answering(output):
        from k8s.chart.values import computed_values, rendered
        from k8s.client.cluster import Cluster
        from k8s.needs.facts import gather
        from k8s.needs.fitting import nodes_of
        from k8s.needs.needs import needs_of
        from k8s.preflight.preflight import findings
        from k8s.preflight.room import fit_as_json

        given = _given(values, set_values, set_strings)
        if not given and fleet is None:
            raise CommandError(
                "no values and no fleet were given",
                "pass the chart's values with --values, or a fleet with --fleet",
                ExitCode.USAGE,
            )
        computed = computed_values(given)
        checked = _checked(computed, fleet, given, not no_engine_args)
        cluster = Cluster(kubeconfig, context)
        where = namespace or cluster.namespace
        own_fleet = None if fleet is None else Path(checked.source)
        needs = needs_of(rendered(given, release, where, own_fleet), checked.fleet, computed)
        facts = gather(cluster, needs, where, release)
        found = findings(facts, needs)
        if is_data(output):
            nodes = nodes_of(facts.nodes or [], facts.pods or [], (where, release))
            fit = fit_as_json(needs, nodes) if facts.nodes is not None else None
            listed = [finding.as_json() for finding in found]
            print_data({"namespace": where, "findings": listed, "fit": fit}, output)
        else:
            print_findings(found)
        if any(finding.severity == "problem" for finding in found):
            raise typer.Exit(ExitCode.FOUND)


@k8s.command()
def chart() -> None:
    """Print the path of the bundled Helm chart."""
    with answering():
        from k8s.chart.values import CHART

        typer.echo(CHART)


@k8s.command()
def status(
    release: Release = "",
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the release is ready, or until --timeout expires."),
    ] = False,
    timeout: Annotated[
        Duration,
        typer.Option(parser=duration(), metavar="DURATION", help="Longest wait with --wait."),
    ] = WAIT_TIMEOUT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = "table",
) -> None:
    """Show a release: pods and why they wait, endpoints, Redis, warnings."""
    with answering(output):
        from k8s.client.cluster import Cluster
        from k8s.release.release import seen
        from k8s.release.status import report

        cluster = Cluster(kubeconfig, context)
        deadline = time.monotonic() + timeout
        while True:
            service = named_release(cluster, namespace or cluster.namespace, release)
            picture = report(seen(cluster, service))
            if picture.is_ready or not wait or time.monotonic() >= deadline:
                break
            time.sleep(LOOK_AGAIN_S)
        if is_data(output):
            print_data(picture.as_json(), output)
        else:
            for line in _lines(picture):
                typer.echo(line)
        if not picture.is_ready:
            raise typer.Exit(ExitCode.NOT_READY)


@k8s.command()
def diff(
    release: Release = "",
    values: ValuesFiles = None,
    set_values: Set = None,
    set_strings: SetString = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = "table",
) -> None:
    """Show what a helm upgrade would restart or move, and how many GPUs it needs. Needs Helm.

    The command exits with 0 if nothing changes, and otherwise with 1.
    """
    with answering(output):
        from k8s.chart.values import computed_values, rendered
        from k8s.client.cluster import Cluster
        from k8s.needs.needs import needs_of
        from k8s.release.release import release_name, seen
        from k8s.release.upgrade_diff import upgrade_diff

        given = _given(values, set_values, set_strings)
        computed = computed_values(given)
        checked = _checked(computed, None, given, False)
        cluster = Cluster(kubeconfig, context)
        where = namespace or cluster.namespace
        service = named_release(cluster, where, release)
        objects = rendered(given, release_name(service), where)
        needs = needs_of(objects, checked.fleet, computed)
        if not needs.images_named:
            raise Problem(
                "image.registry is empty in these values",
                "pass all values of the release, as for helm upgrade",
            )
        (wanted,) = [of for of in objects if of["kind"] == "RayService"]
        found = upgrade_diff(seen(cluster, service), wanted, needs)
        if is_data(output):
            print_data(found.as_json(), output)
        else:
            for line in _diff_lines(found):
                typer.echo(line)
        if not found.nothing:
            raise typer.Exit(ExitCode.FOUND)


def _given(
    files: list[str] | None, values: list[str] | None, strings: list[str] | None
) -> list[str]:
    """Return Helm's options for these values."""
    options = {"--values": files, "--set": values, "--set-string": strings}
    return [
        word for option, all_of in options.items() for one in all_of or () for word in (option, one)
    ]


def named_release(cluster: Cluster, namespace: str, release: str) -> dict[str, Any]:
    """Return the release's RayService. Raises CommandError if there is none."""
    from k8s.release.release import release_of

    service = release_of(cluster, namespace, release)
    if service is None:
        named = f"release {release}" if release else "release of Antefix"
        raise CommandError(
            f"namespace {namespace} has no {named}",
            "helm list -A shows its namespace",
            ExitCode.NOT_RUNNING,
        )
    return service


def _checked(
    values: dict[str, Any], name: str | None, given: list[str], ask_vllm: bool
) -> CheckedFleet:
    """Check the fleet. Faults of a fleet inside values name its path there, without a line."""
    if name is not None:
        checked = check_fleet(name, check_engine_args=ask_vllm)
        for warning in checked.warnings:
            note(f"warning: {warning.text(checked.source)}")
        return checked
    if not values.get("fleet"):
        raise Problem(
            "the values contain no fleet",
            "add a values file from the folder that antefix k8s chart prints, or pass a fleet with"
            " --fleet",
        )
    source = given[-1] if given[-2:-1] == ["--values"] else "the values"
    text = yaml.safe_dump(_without_variables(values["fleet"]), sort_keys=False)
    try:
        checked = check_text(text, source, check_engine_args=ask_vllm)
    except FleetError as error:
        raise FleetError(source, [_inside(fault) for fault in error.faults]) from None
    for warning in checked.warnings:
        note(f"warning: {_inside(warning).text(source)}")
    return checked


def _inside(fault: Fault) -> Fault:
    """Return the fault with the path in the values, whose lines are unknown."""
    return replace(fault, path=f"fleet.{fault.path}".rstrip("."), line=None)


def _without_variables(data: Any) -> Any:
    """Return the data without ${VARIABLE}s. The chart checks them; this machine's environment does
    not matter."""
    if isinstance(data, dict):
        return {key: _without_variables(value) for key, value in data.items()}
    return escaped(data) if isinstance(data, str) else data


def print_findings(found: list[PreflightFinding]) -> None:
    for finding in found:
        typer.echo(f"{finding.severity:<8} {finding.title}: {finding.seen}")
        if finding.remedy:
            typer.echo(f"{'':<8}   -> {finding.remedy}")
    counts = Counter(finding.severity for finding in found)
    note(f"{counted(counts['problem'], 'problem')}, {counted(counts['warning'], 'warning')}")


def _lines(picture: Report) -> Iterator[str]:
    state = "ready" if picture.is_ready else "not ready"
    yield f"{picture.name} in {picture.namespace}: {state}"
    yield from (f"  {condition}" for condition in picture.conditions)
    yield from (f"  application {line}" for line in picture.applications)
    yield f"active cluster: {picture.active or 'none yet'}"
    for group in picture.groups:
        yield from _group_lines(group)
    if picture.pending:
        yield f"cluster that is starting: {picture.pending}"
        for group in picture.coming:
            yield from _group_lines(group)
    for cluster, pods in picture.leaving.items():
        yield f"cluster that is stopping: {cluster}, {counted(pods, 'pod')}"
    yield f"gateways that accept requests: {picture.endpoints}"
    for group in picture.beside:
        yield from _group_lines(group)
    for pool, (ready, wanted) in picture.placeholders.items():
        yield f"warm nodes of {pool}: {ready} of {wanted}"
    for job in picture.jobs:
        yield f"job {job.name}: {job.state}{f', {job.why}' if job.why else ''}"
        yield from _quoted(job.said)
    if picture.ended:
        yield "last pods that failed and were replaced:"
    for pod in picture.ended:
        yield f"  {pod.pod}: {pod.why} at {pod.when}"
        yield from _quoted(pod.said)
    if picture.events:
        yield "last warnings:"
        yield from (f"  {event}" for event in picture.events)
    yield from _not_shown(picture.denied)


def _group_lines(group: GroupStatus) -> Iterator[str]:
    nodes = f" on {', '.join(group.nodes)}" if group.nodes else ""
    extra = f", {counted(group.extra, 'pod')} more than wanted" if group.extra else ""
    yield f"  {group.name}: {group.ready} of {group.wanted} ready{nodes}{extra}"
    for pod in group.waiting:
        yield f"    {pod.pod}: {pod.why}"
        yield from _quoted(pod.said)


def _quoted(said: list[str]) -> Iterator[str]:
    """Yield the last lines of a container's log."""
    yield from (f"      | {line}" for line in said)


def _diff_lines(found: UpgradeDiff) -> Iterator[str]:
    yield f"{found.name} in {found.namespace}, cluster {found.cluster or 'none yet'}"
    if found.under_way:
        yield (
            "an upgrade is already in progress; the comparison is with the cluster that is starting"
        )
    if found.nothing:
        yield "pods and fleet stay unchanged"
        yield from _not_shown(found.denied)
        return
    if found.hot and not found.moves:
        yield "applies without a restart:"
        yield from map(_change_line, found.hot)
    if found.moves:
        yield "starts a second cluster with new pods, moves to it, and stops this one:"
        yield from map(_change_line, [*found.pods, *found.hot, *found.cold])
    elif found.pods:
        yield "takes effect when you delete the RayCluster, because upgrade.strategy is None:"
        yield from map(_change_line, found.pods)
    if found.added:
        yield f"adds pods to this cluster: {', '.join(found.added)}"
    if found.cold and not found.moves:
        who = [*(["gateways"] if found.gateways else []), *(f"engines of {p}" for p in found.pools)]
        yield _restarted(who)
        yield from map(_change_line, found.cold)
    gpus = found.gpus
    both = "while both clusters run" if found.moves else "during the upgrade"
    after = f"{gpus.after} {'right after the switch' if found.moves else 'after the upgrade'}"
    yield f"GPUs: {gpus.now} now, {gpus.meanwhile} {both}, {after}"
    yield from _not_shown(found.denied)


def _restarted(who: list[str]) -> str:
    if not who:
        return "starts engines of added pools and stops engines of removed pools:"
    return f"restarts {', '.join(who)}, in their pods, a few at a time:"


def _change_line(change: Change) -> str:
    of = f"pods of {change.where}" if change.where else ""
    what = ": ".join(filter(None, (of, change.path)))
    if not change.path:
        return f"  {what}: {'removed' if change.new is None else 'new'}"
    if change.old is None:
        return f"  {what}: new, {_short(change.new)}"
    if change.new is None:
        return f"  {what}: removed (was {_short(change.old)})"
    return f"  {what}: {_short(change.old)} -> {_short(change.new)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _not_shown(denied: list[str]) -> Iterator[str]:
    yield from (f"not shown: these credentials {what}" for what in denied)
