"""The cluster of KUBECONFIG, as functions."""

from tests.kubernetes.api import Kubernetes

_cluster = Kubernetes()
kubectl = _cluster.kubectl
objects = _cluster.objects
get = _cluster.get
apply = _cluster.apply
