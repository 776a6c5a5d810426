"""`antefix up` says of replicas that Ray cannot place what they lack."""

import json

import pytest

from cli.local.placing import delay


def message(needs: object, free: object, replicas: int = 2) -> str:
    """Ray Serve's, of 2.5x."""
    return (
        f"Deployment 'engine' in application 'antefix-engine' has {replicas} replicas that have "
        "taken more than 30s to be scheduled. This may be due to waiting for the cluster to "
        "auto-scale or for a runtime environment to be installed. Resources required for each "
        f"replica: {json.dumps(needs)}, total resources available: {json.dumps(free)}. "
        "Use `ray status` for more details."
    )


@pytest.mark.parametrize(
    ("needs", "free", "said"),
    [
        (
            {"CPU": 4, "GPU": 1.0},
            {"CPU": 8.0},
            "Ray has not yet placed 2, each needs 1 GPU (free: 0)",
        ),
        ({"CPU": 0.5}, {"CPU": 0.25}, "Ray has not yet placed 2, each needs 0.5 CPU (free: 0.25)"),
        ({"CPU": 0.5}, {"CPU": 2.0}, "Ray has not yet placed 2"),  # a process takes long to start
        ([{"GPU": 4}], {}, "Ray has not yet placed 2"),
        ("UNKNOWN", "UNKNOWN", "Ray has not yet placed 2"),
    ],
)
def test_missing_resources_are_named(needs: object, free: object, said: str) -> None:
    assert delay(message(needs, free)) == said


@pytest.mark.parametrize("other", ["", "The deployment is updating.", "has 2 replicas"])
def test_other_messages_report_no_placement_delay(other: str) -> None:
    assert delay(other) == ""
