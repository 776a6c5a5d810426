"""A measured figure and its uncertainty."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95% confidence interval."""

    value: float
    low: float
    high: float
