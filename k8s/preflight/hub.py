"""Findings about models whose license must be accepted on the Hub."""

from collections.abc import Iterator

from k8s.needs.needs import ClusterNeeds
from k8s.preflight.findings import PreflightFinding


def license_findings(needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    """For each such model, check that pods that download it have a token."""
    if not needs.asks_hub or needs.hub_token is None:
        return
    gated = {
        model.name: (model.license, pool)
        for pool, models in needs.hub_models.items()
        for model in models
        if model.license
    }
    for name, (license, pool) in gated.items():
        title = f"license of {name}"
        if needs.hub_token:
            yield PreflightFinding(
                "note",
                title,
                f"the Hub serves it only to accounts that accepted {license}; the token in "
                "models.hub.existingSecret must belong to such an account",
            )
            continue
        yield PreflightFinding(
            "problem",
            title,
            f"the Hub serves it only to accounts that accepted {license}, and pods have no token; "
            f"{pool} would wait for its download",
            f"accept it at huggingface.co/{name}, put a token of that account into a Secret, and "
            "set models.hub.existingSecret to its name; or choose a model that is not gated",
        )
