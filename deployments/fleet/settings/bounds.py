"""pydantic's refusals of a number out of bounds, as a message and a remedy."""

from pydantic_core import ErrorDetails

_WORDS = {
    "greater_than": ("too low", "Write more than"),
    "greater_than_equal": ("too low", "Write at least"),
    "less_than": ("too high", "Write less than"),
    "less_than_equal": ("too high", "Write at most"),
}


def out_of_bounds(details: ErrorDetails) -> tuple[str, str] | None:
    """None when `details` is about something else than a bound."""
    if details["type"] not in _WORDS:
        return None
    message, remedy = _WORDS[details["type"]]
    limit = next(iter(details["ctx"].values()))
    return message, f"{remedy} {limit:g}" if isinstance(limit, float) else f"{remedy} {limit}"
