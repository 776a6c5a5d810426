"""Redis URLs that a fleet file may contain, and their display without a password.

    redis://[user:password@]host[:port][/db]            rediss:// is the same over TLS
    unix://[user:password@]/path/to.sock[?db=0]
    redis+sentinel://[user:password@]host[:port],host[:port]/service[/db]   rediss+sentinel://
    redis+cluster://[user:password@]host[:port],host[:port]                 rediss+cluster://

Each may end with options of redis-py, such as `?ssl_ca_certs=/ca.pem`; a sentinel's URL also with
`sentinel_username` and `sentinel_password`. Only the form is checked; nothing connects. Messages
repeat only the URL's scheme and the names of known options, because a mistyped URL can have the
password anywhere.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote

from router.redis.redis_client import connect

SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_HOST_AND_PORT = re.compile(rf"^{_HOST}(?::(?P<port>\d{{1,5}}))?$")
_TLS_OPTIONS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_cert_reqs", "ssl_certfile"),
    *("ssl_check_hostname", "ssl_ciphers", "ssl_keyfile", "ssl_min_version", "ssl_password"),
)
_SECRET_QUERY = re.compile(r"(?i)([?&][^=&]*passw[^=&]*=)[^&]*")


class Refusal(NamedTuple):
    """A rejected URL: the reason, and the remedy."""

    message: str
    remedy: str


def refusal_of(url: str) -> Refusal | None:
    """Return None if `url` is a URL that Antefix can use."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Refusal("not a Redis URL", "Write it as redis://host:6379/0")
    if scheme in ("valkey", "valkeys"):
        redis_scheme = scheme.replace("valkey", "redis")
        return Refusal(
            f"unknown scheme {scheme}://",
            f"Valkey speaks Redis's protocol: write {redis_scheme}://",
        )
    if scheme not in SCHEMES:
        return Refusal(
            "unknown scheme", "Use one of " + ", ".join(f"{known}://" for known in SCHEMES)
        )
    if re.search(r"\s", url):
        return Refusal("contains white space", "Write it as %20, or remove it")
    before_query, _, _ = rest.partition("?")
    authority, _, path = before_query.partition("/")
    if "@" in path or "@" in authority.rpartition("@")[0]:
        return Refusal(
            "the user or password contains a character that ends it",
            "Percent-encode it: / is %2F, @ is %40, ? is %3F",
        )
    hosts = authority.rpartition("@")[2]
    if scheme == "unix":
        form = _unix_refusal(hosts, path)
    else:
        form = _hosts_refusal(scheme, hosts.split(",")) or _path_refusal(scheme, path)
    return form or _options_refusal(url)


def masked(url: str) -> str:
    """Return `url` with every possible password replaced by ***; the user name stays."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    userinfo, at, host = rest.rpartition("@")
    if at:
        user, colon, _ = userinfo.partition(":")
        rest = f"{user}:***@{host}" if colon else f"***@{host}"
    return scheme + separator + _SECRET_QUERY.sub(r"\1***", rest)


def _unix_refusal(hosts: str, path: str) -> Refusal | None:
    if hosts or not path:
        return Refusal(
            "a socket's path must be absolute", "Write three slashes: unix:///run/redis.sock"
        )
    return None


def _hosts_refusal(scheme: str, hosts: list[str]) -> Refusal | None:
    if hosts == [""]:
        return Refusal("names no host", f"Write {scheme}://host:6379")
    if len(hosts) > 1 and "+" not in scheme:
        return Refusal(
            "names several hosts",
            f"Several are for {scheme}+sentinel:// or {scheme}+cluster://",
        )
    for place, host in enumerate(hosts, start=1):
        which = f"host {place} of {len(hosts)}" if len(hosts) > 1 else "the host"
        form = _HOST_AND_PORT.match(host)
        if form is None:
            return Refusal(f"{which} is not host or host:port", "Write it as redis.example:6379")
        if form["port"] is not None and not 1 <= int(form["port"]) <= 65535:
            return Refusal(f"the port of {which} is out of range", "A port is 1 to 65535")
    return None


def _options_refusal(url: str) -> Refusal | None:
    """Return redis-py's fault of the options after the `?`, whose text may contain a password."""
    query = url.partition("?")[2]
    try:
        connect(url)
    except ValueError:
        names = [part.partition("=")[0] for part in query.split("&")]
        tls = [name for name in names if name.startswith("ssl_")]
        if tls and not url.startswith("rediss"):
            return Refusal(
                f"the option {tls[0] if tls[0] in _TLS_OPTIONS else 'for TLS'} needs TLS",
                "Write rediss instead of redis at its beginning",
            )
        return Refusal(
            "an option after the ? is unknown, or its value is not valid",
            "Use options of redis-py's connections, such as ssl_ca_certs=/path/ca.pem,"
            " ssl_cert_reqs=required or socket_keepalive=true; percent-encode a ? of a password"
            " as %3F",
        )
    return None


def _path_refusal(scheme: str, path: str) -> Refusal | None:
    parts = [unquote(part) for part in path.rstrip("/").split("/")] if path else []
    parts = [] if parts == [""] else parts
    if scheme.endswith("+sentinel"):
        if not parts:
            return Refusal(
                "names no Sentinel service", f"Write {scheme}://host:26379/mymaster, or /mymaster/0"
            )
        parts = parts[1:]
    if scheme.endswith("+cluster") and parts not in ([], ["0"]):
        return Refusal("a Redis Cluster has database 0 only", "Remove the path after the host")
    if len(parts) > 1 or (parts and not parts[0].isdecimal()):
        return Refusal("the database is not a number", "Write it as /0 after the host")
    return None
