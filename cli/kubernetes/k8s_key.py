"""`antefix k8s key`: an API key from a release's Secret."""

from __future__ import annotations

import typer

from cli.common.options import Release
from cli.common.output import answering
from cli.kubernetes.k8s import Context, Kubeconfig, Namespace, named_release


def key(
    release: Release = "",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print an API key of a release: an operator's if there is one. Keys stored as hashes cannot be
    printed."""
    with answering():
        from cli.kubernetes.accepted_release import fleet_of, key_of
        from k8s.client.cluster import Cluster

        cluster = Cluster(kubeconfig, context)
        service = named_release(cluster, namespace or cluster.namespace, release)
        typer.echo(key_of(cluster, service, fleet_of(service)))
