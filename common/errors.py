"""The one error of setting up a fleet on this machine."""


class SetupError(Exception):
    """Something outside Antefix stands in the way; `remedy` is what the user can do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy
