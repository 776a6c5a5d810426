"""Findings about images: whether they are set, and which nodes already have them."""

from collections.abc import Iterator, Sequence

from k8s.client.cluster import Object
from k8s.needs.fitting import Node, against
from k8s.needs.needs import ClusterNeeds
from k8s.preflight.findings import PreflightFinding, some

_TITLE = "images"
# the kubelet's --node-status-max-images: it reports the largest images
_MOST_TOLD = 50


def registry_findings(needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    if not needs.images_named:
        yield PreflightFinding(
            "warning",
            _TITLE,
            "image.registry is empty, and no public registry has Antefix's images",
            "build and push them (docs/kubernetes/install.md), and set image.registry",
        )


def pull_findings(
    needs: ClusterNeeds, told: Sequence[Object], nodes: Sequence[Node]
) -> Iterator[PreflightFinding]:
    """`told` are the nodes' objects, which list the images of a node."""
    if not needs.images_named:
        return
    has = {of["metadata"]["name"]: _names(of) for of in told}
    lacking: dict[str, list[str]] = {}
    for group in needs.groups:
        may = [node.name for node in nodes if not against(group, node)]
        for image in needs.images.get(group.name, ()):
            lacks = [name for name in may if has[name] and _full(image) not in has[name]]
            lacking.setdefault(image, []).extend(lacks)
    for image, lacks in lacking.items():
        nodes_without = list(dict.fromkeys(lacks))
        if not nodes_without:
            continue
        if needs.pulls == "Never":
            yield PreflightFinding(
                "problem",
                _TITLE,
                f"{image} is not on {some(nodes_without, 3)}, and image.pullPolicy is Never",
                f"load it there, for example with kind load docker-image {image}, or set "
                "image.registry and image.pullPolicy: IfNotPresent",
            )
        else:
            yield PreflightFinding(
                "note",
                _TITLE,
                f"{image} is not on {some(nodes_without, 3)} yet; the first pod there waits until "
                "it is pulled",
            )


def _names(node: Object) -> set[str]:
    """Return the images of a node; empty if it does not list all of them."""
    images = node["status"].get("images") or ()
    if len(images) >= _MOST_TOLD:
        return set()
    return {name for image in images for name in image.get("names") or ()}


def _full(image: str) -> str:
    """Return the image's name as nodes list it: with Docker's registry in front if there is
    none."""
    first, _, rest = image.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if rest else f"docker.io/library/{image}"
