"""Findings of `antefix k8s preflight`: one per question, each bad one with its remedy."""

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Literal

Severity = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class PreflightFinding:
    """A finding. `seen` describes the cluster's state; `remedy` is empty if nothing has to be
    done."""

    severity: Severity
    title: str
    seen: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def some(names: list[str], most: int = 6) -> str:
    """Return a list for a sentence, shortened if it is long."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def counted(number: int | Decimal, noun: str) -> str:
    """Return the number with its noun, such as `1 pod` or `2 pods`."""
    return f"{Decimal(number):f} {noun}{'' if number == 1 else 's'}"


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
