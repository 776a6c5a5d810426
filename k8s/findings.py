"""What `antefix k8s preflight` says: one finding a question, each bad one with its remedy."""

from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class PreflightFinding:
    """`seen` is what the cluster showed; `remedy` is empty where nothing is to be done."""

    severity: Severity
    title: str
    seen: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def some(names: list[str], most: int = 6) -> str:
    """A list in a sentence, cut where it gets long."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
