"""What goes wrong with weights, for the one who asked."""


class WeightsError(Exception):
    """Says what is wrong, with the value, and what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy
