"""Where to look next: it differs between the fleet on this machine and other fleets."""

from __future__ import annotations

from cli.local.home import Home
from common.errors import Problem

LOGS_HERE = "see antefix logs"
LOGS_ELSEWHERE = "see the logs of its gateways and engines (on Kubernetes, their pods' logs)"
NO_MODEL = "check that the API key may use a model, and that the server has one"


def is_here(base_url: str) -> bool:
    """Return whether the fleet on this machine serves at that address."""
    try:
        state = Home().state()
    except (OSError, Problem):
        return False
    return state is not None and _origin(state.base_url) == _origin(base_url)


def logs_of(base_url: str) -> str:
    """Return how to read the logs of the fleet at that address."""
    return LOGS_HERE if is_here(base_url) else LOGS_ELSEWHERE


def address_of(base_url: str) -> str:
    """Return the remedy if no connection to that address is possible."""
    if is_here(base_url):
        return LOGS_HERE
    return "check the address, and that the server or kubectl port-forward is running"


def key_of(base_url: str) -> str:
    """Return the remedy if the fleet at that address rejects the key."""
    if is_here(base_url):
        return "check --api-key; antefix env prints a valid key"
    return "set OPENAI_API_KEY to a key of that fleet"


def status_of(base_url: str) -> str:
    """Return the command that shows the state of the fleet at that address."""
    return "antefix status" if is_here(base_url) else "antefix k8s status, on Kubernetes"


def _origin(base_url: str) -> str:
    return base_url.rstrip("/").removesuffix("/v1")
