"""${VARIABLE} in the values of a fleet file. `$${` stands for a plain `${`.

A variable in the user or password of a URL is percent-encoded, so that a password may contain any
character.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[^}]*)(?P<end>\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Unresolved(NamedTuple):
    """A ${...} that cannot be replaced."""

    message: str
    remedy: str


def resolved(text: str, environ: Mapping[str, str]) -> tuple[str, list[Unresolved]]:
    """Return `text` with every variable replaced, and those that could not be."""
    unresolved: list[Unresolved] = []
    userinfo_end = text.rfind("@") if "://" in text else -1

    def replace(reference: re.Match[str]) -> str:
        name = reference["name"]
        if name is None:
            return "${"
        if not reference["end"] or not _NAME.fullmatch(name):
            unresolved.append(
                Unresolved(
                    "contains a ${ that does not start a ${VARIABLE}", "Write $${ for a plain ${"
                )
            )
            return reference[0]
        if name not in environ:
            unresolved.append(
                Unresolved(
                    f"the environment variable {name} is not set",
                    f"Run export {name}=..., or write the value here",
                )
            )
            return reference[0]
        inside_userinfo = reference.start() < userinfo_end
        # ":" stays, because a variable may contain user:password
        return quote(environ[name], safe=":") if inside_userinfo else environ[name]

    return _REFERENCE.sub(replace, text), unresolved


def escaped(text: str) -> str:
    """Return `text` in a form from which `resolved` restores it."""
    return text.replace("${", "$${")
