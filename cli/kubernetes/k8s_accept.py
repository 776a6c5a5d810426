"""`antefix k8s accept`: the test that an operator runs on the first real cluster, and its
report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common.duration import Duration, duration
from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import GatewayClient
from cli.common.named_pool import named_pool
from cli.common.options import Output, Release
from cli.common.output import CommandError, answering, is_data, note, print_data
from cli.gateway.verify import first_key
from cli.kubernetes.k8s import Context, Kubeconfig, Namespace, named_release
from common.errors import Problem
from k8s.preflight.findings import counted

if TYPE_CHECKING:
    from k8s.release.status import Report


RECOVERY_TIMEOUT = Duration(900)


def accept(
    release: Release = "",
    pool: Annotated[str | None, typer.Option(help="Pool to test; default: all.")] = None,
    non_disruptive: Annotated[
        bool, typer.Option("--non-disruptive", help="Do not kill or drain engines.")
    ] = False,
    under_traffic: Annotated[
        bool, typer.Option("--under-traffic", help="Continue even if the release is in use.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder of the report, antefix-accept.json and .txt; created if missing.",
        ),
    ] = Path(),
    recovery_timeout: Annotated[
        Duration,
        typer.Option(
            parser=duration(at_least=1),
            metavar="DURATION",
            help="Longest wait for a replacement engine.",
        ),
    ] = RECOVERY_TIMEOUT,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="Base URL to use instead of kubectl port-forward, with or without /v1 at its end."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a tenant=key line of an operator; default: the release's key."
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = "table",
) -> None:
    """Test a release: kernels, memory, speed, prefix hits, engine loss, drain. Disrupts service."""
    with answering(output):
        from cli.kubernetes.acceptance import AcceptedRelease, PoolAcceptance
        from cli.kubernetes.acceptance_report import report_of, write
        from cli.kubernetes.accepted_release import (
            address_of,
            back_as_before,
            fleet_of,
            idle_engines,
            key_of,
            ready_release,
        )
        from k8s.client.cluster import Cluster
        from k8s.client.kubectl import Kubectl

        def show(line: str) -> None:
            if not is_data(output):
                typer.echo(line)

        began = time.time()
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Problem(
                f"{output_dir} cannot be created: {error.strerror}", "choose another --output-dir"
            ) from error
        report = output_dir / "antefix-accept"
        cluster = Cluster(kubeconfig, context)
        where = namespace or cluster.namespace
        service = named_release(cluster, where, release)
        before, fleet = ready_release(cluster, service), fleet_of(service)
        pools = fleet.pools if pool is None else dict([named_pool(fleet.pools, pool)])
        key = first_key(api_key_file) if api_key_file else key_of(cluster, service, fleet)
        kubectl = Kubectl(where, kubeconfig, context)
        with address_of(base_url, kubectl, cluster, service) as url:
            client = GatewayClient(url, key)
            engines = idle_engines(client, under_traffic)
            _say({name: engines[name] for name in pools}, before, non_disruptive, report)
            if not yes:
                _confirm()
            reached = AcceptedRelease(
                client,
                kubectl,
                cluster,
                namespace=where,
                recover_s=recovery_timeout,
                show=show,
            )
            tried = [PoolAcceptance(reached, name, of_it) for name, of_it in pools.items()]
            for one in tried:
                show(f"pool {one.name}")
                one.run(losses=not non_disruptive)
        end = back_as_before(cluster, service, before, recovery_timeout)
        show(end.line)
        told = report_of(cluster, before, tried, end=end, began=began, busy=under_traffic)
        write(told, report)
        if is_data(output):
            print_data(told, output)
        failed = counted(told["failed"], "check")
        note(f"{failed} failed; the report is in {report}.json and {report}.txt")
        if told["failed"]:
            raise typer.Exit(ExitCode.FOUND)


def _confirm() -> None:
    try:
        agreed = typer.confirm("Continue?", err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise CommandError(
            "not confirmed, so nothing was done", "answer y, or pass --yes", ExitCode.DECLINED
        )


def _say(engines: Mapping[str, int], before: Report, non_disruptive: bool, report: Path) -> None:
    """Print the plan; `engines`: their number by pool."""
    note(f"In each pool of {before.name} in {before.namespace} ({', '.join(engines)}), this will:")
    note("- run a command in an engine's pod that reads its log and its GPUs")
    note("- send about a dozen requests, one after the other")
    if not non_disruptive:
        note("- kill one engine in the middle of an answer, and wait until another is up")
        note("- delete the pod of one engine, which drains first, while two clients send requests")
        for name in (name for name, count in engines.items() if count == 1):
            note(
                f"  pool {name} has one engine: it is killed while idle, and the pool cannot "
                "answer meanwhile"
            )
    note(f"Then write {report}.json and {report}.txt.")
