"""The one error of what a user can mend."""


class Problem(Exception):
    """What is wrong, with the value, and the `remedy`: what the user can do about it.

    `remedy` is empty where `message` says it itself.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message
