"""What preflight finds of images that nodes have or have not."""

from __future__ import annotations

import pytest

from tests.k8s.asking import READY, llama, preflight_findings
from tests.k8s.objects import Object, node

ON_CPUS = {"llama": llama(resources={"gpus": 0})}


def having(*images: str) -> Object:
    made = node("cpu-1")
    made["status"]["images"] = [{"names": [image]} for image in images]
    return made


def image_findings(has: tuple[str, ...], image: Object) -> list[tuple[str, str]]:
    found = preflight_findings(*READY, having(*has), pools=ON_CPUS, values={"image": image})
    return [(one.severity, one.seen) for one in found if one.title == "images"]


def test_an_image_that_is_never_pulled_must_exist_on_the_node() -> None:
    ((severity, seen),) = image_findings(("docker.io/other:1",), {"pullPolicy": "Never"})
    assert severity == "problem"
    image, _, rest = seen.partition(" ")
    assert rest == "is not on cpu-1, and image.pullPolicy is Never"
    assert image_findings((image,), {"pullPolicy": "Never"}) == []


def test_dockers_own_registry_need_not_be_named() -> None:
    image = {"registry": "antefix", "pullPolicy": "Never"}
    ((_, seen),) = image_findings(("docker.io/other:1",), image)
    assert seen.startswith("antefix/")
    assert image_findings((f"docker.io/{seen.partition(' ')[0]}",), image) == []


def test_an_image_that_is_pulled_may_be_missing() -> None:
    ((severity, seen),) = image_findings(("docker.io/other:1",), {})
    assert severity == "note"
    assert seen.endswith("is not on cpu-1 yet; the first pod there waits until it is pulled")


@pytest.mark.parametrize("images", [(), tuple(f"docker.io/other:{i}" for i in range(50))])
def test_a_node_with_no_or_incomplete_images_gives_no_finding(images: tuple[str, ...]) -> None:
    assert image_findings(images, {}) == []
