"""An exponentially weighted mean of samples that each have a weight."""


class Ewma:
    """`memory`: the weight after which an old sample counts about 1/e of a new one."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._amount = 0.0
        self._weight = 0.0

    def add(self, amount: float, weight: float) -> None:
        """Samples of `weight` together, and of `amount`, their sum."""
        keep = max(0.0, 1.0 - weight / self._memory)
        self._amount = self._amount * keep + amount
        self._weight = self._weight * keep + weight

    def add_times(self, amount: float, times: int) -> None:
        """The same as so many samples of weight 1, one after the other."""
        keep = max(0.0, 1.0 - 1.0 / self._memory) ** times
        added = (1.0 - keep) * self._memory
        self._amount = self._amount * keep + amount * added
        self._weight = self._weight * keep + added

    @property
    def mean(self) -> float:
        """0 before the first sample."""
        return self._amount / self._weight if self._weight > 0 else 0.0
