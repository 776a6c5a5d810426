"""`antefix k8s logs`: the logs of a release's pods in order of time, each line with its pod."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.common.duration import Duration, duration
from cli.common.exit_codes import ExitCode
from cli.common.log_line import mention_of, parsed, readable
from cli.common.options import Follow, Release, RequestId, Tail
from cli.common.output import CommandError, answering
from cli.kubernetes.k8s import Context, Kubeconfig, Namespace, named_release

if TYPE_CHECKING:
    from k8s.client.cluster import Object
    from k8s.release.pod_logs import PodLine, Wanted


class PodComponent(StrEnum):
    """`CONTROLLER` is Ray Serve's, in the head's pod; `HEAD` is the rest of that pod. `WARM_NODES`
    is the controller of placeholders."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    CONTROLLER = "controller"
    HEAD = "head"
    WARM_NODES = "warm-nodes"
    ALL = "all"


# Components by the pods in which they run.
_IN_HEAD = (PodComponent.CONTROLLER, PodComponent.HEAD)
_OF_A_POOL = (PodComponent.GATEWAY, PodComponent.ENGINE)


def logs(
    release: Release = "",
    follow: Follow = False,
    tail: Tail = 20,
    since: Annotated[
        Duration | None,
        typer.Option(
            parser=duration(1.0),
            metavar="DURATION",
            help="Show only lines that are at most this old, such as 5m; default: all.",
        ),
    ] = None,
    component: Annotated[
        PodComponent, typer.Option(help="Show only lines of this component.")
    ] = PodComponent.ALL,
    pool: Annotated[
        str,
        typer.Option(
            help="Show only lines of this pool's engines, and lines of gateways about the pool."
        ),
    ] = "",
    request: RequestId = "",
    output: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--output", "-o", help="Output format; json prints only the JSON lines, unchanged."
        ),
    ] = "text",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the logs of a release's pods, with one short line per request."""
    with answering():
        from k8s.client.cluster import Cluster
        from k8s.release.pod_logs import PodLogs, pods_of

        cluster = Cluster(kubeconfig, context)
        service = named_release(cluster, namespace or cluster.namespace, release)
        components = _pods_with(component, pool)

        def pods() -> list[Object]:
            return pods_of(cluster, service, components, pool)

        def wanted(pod: Object) -> Wanted:
            return _wanted(pod, component, pool, request, output == "json")

        def show(line: PodLine) -> None:
            if output == "json":
                typer.echo(line.text)
            else:
                for text in readable(line.text, whole=bool(request)).splitlines() or [""]:
                    typer.echo(f"{line.pod} | {text}")

        reads = PodLogs(cluster, wanted, math.ceil(since or 0))
        is_filtered = bool(request or pool) or output == "json" or component in _IN_HEAD
        found = reads.read(pods(), None if is_filtered else tail)
        for line in found[max(0, len(found) - tail) :]:
            show(line)
        if request and not found and not follow:
            raise CommandError(
                f"the logs contain no line about request {request!r}",
                "pass the x-request-id of its answer; requests without a valid key are not logged,"
                " and Kubernetes deletes old lines and those of deleted pods",
                ExitCode.FAILED,
            )
        if follow:
            for line in reads.follow(pods):
                show(line)


def _pods_with(component: PodComponent, pool: str) -> tuple[str, ...]:
    """Return the value of the label antefix/component of each pod to read."""
    if component in _IN_HEAD:
        return (PodComponent.HEAD,)
    if component != PodComponent.ALL:
        return (component,)
    return _OF_A_POOL if pool else (*_OF_A_POOL, PodComponent.HEAD, PodComponent.WARM_NODES)


def _wanted(
    pod: Object, component: PodComponent, pool: str, request: str, only_json: bool
) -> Wanted:
    """Return the filter of a pod's lines."""
    from k8s.release.pod_logs import label

    about = mention_of(request)
    of_gateways_pool = pool if label(pod, "component") == PodComponent.GATEWAY else ""

    def wanted(text: str) -> bool:
        if request and not about.search(text):
            return False
        fields: dict[str, Any] | None = parsed(text)
        if fields is None:
            return not only_json and not of_gateways_pool and component != PodComponent.CONTROLLER
        if of_gateways_pool:
            return of_gateways_pool in (fields.get("pool"), fields.get("served_by_pool"))
        if component in _IN_HEAD:
            return bool(fields.get("component") == component)
        return True

    return wanted
