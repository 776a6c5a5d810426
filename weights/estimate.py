"""A measured figure and how sure it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float
