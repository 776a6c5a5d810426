"""A header that clients send or get: what the code that uses it and docs/api.md share."""

from __future__ import annotations

from collections.abc import Mapping


class ClientHeader(str):
    """The header's name in lower case.

    `type`: what its value is, with the unit. `meaning`: whole sentences.
    """

    type: str
    meaning: str

    def __new__(cls, name: str, type: str, meaning: str) -> ClientHeader:
        header = super().__new__(cls, name)
        header.type, header.meaning = type, meaning
        return header


def headers_in(module: Mapping[str, object]) -> tuple[ClientHeader, ...]:
    """Return the headers among a module's `vars`, in its order."""
    return tuple(each for each in module.values() if isinstance(each, ClientHeader))
