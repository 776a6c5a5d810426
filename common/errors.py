"""The error for faults that users can fix."""


class Problem(Exception):
    """A fault: `message` names the value and what is wrong, `remedy` says how to fix it.

    `remedy` is empty if `message` contains it.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class Unreachable(Problem):
    """A server that does not answer."""
