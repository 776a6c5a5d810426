"""An exponentially weighted mean of weighted samples."""


class Ewma:
    """`memory`: the weight after which an old sample counts about 1/e of a new one."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._amount = 0.0
        self._weight = 0.0

    def add(self, amount: float, weight: float) -> None:
        """Add samples of total `weight` with the sum `amount`."""
        keep = max(0.0, 1.0 - weight / self._memory)
        self._amount = self._amount * keep + amount
        self._weight = self._weight * keep + weight

    def add_times(self, amount: float, times: int) -> None:
        """Add `times` equal samples of weight 1, one after the other."""
        keep = max(0.0, 1.0 - 1.0 / self._memory) ** times
        added = (1.0 - keep) * self._memory
        self._amount = self._amount * keep + amount * added
        self._weight = self._weight * keep + added

    @property
    def mean(self) -> float:
        """Return the mean; 0 before the first sample."""
        return self._amount / self._weight if self._weight > 0 else 0.0
