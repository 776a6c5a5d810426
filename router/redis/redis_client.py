"""Connections to Redis, for every form of URL.

    redis://  rediss://  unix://                  one server (rediss: TLS; user:password@: ACL)
    redis+sentinel://host:port,host:port/service  the primary that Sentinel names
    redis+cluster://host:port,host:port           Redis Cluster

`rediss+sentinel` and `rediss+cluster` are the same over TLS. Connecting is lazy: a server that is
down raises one of REDIS_FAILURES at the first command.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError, ResponseError

AsyncRedis: TypeAlias = "Redis | RedisCluster"

# Errors of a Redis that is down, slow or wrong; redis-py's cluster errors are not RedisErrors.
REDIS_FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
# Used instead of redis-py's timeout: callers set one, and on Python 3.11 redis-py's
# asyncio.wait_for can swallow a cancellation.
CONNECT_TIMEOUT_S = 1.0
# Bytes that are not UTF-8 are foreign: they are read as a value that is never written.
FOREIGN = "replace"
# Short, and without retries, so that the next sentinel is called within one command's time.
SENTINEL_CONNECT_TIMEOUT_S = 0.25


def is_full(error: BaseException) -> bool:
    """Return whether Redis rejected a write because it is at `maxmemory` and evicts nothing."""
    return isinstance(error, ResponseError) and "OOM command not allowed" in str(error)


def connect(url: str, decode: bool = True) -> AsyncRedis:
    """Return a client whose replies are str, or bytes if `decode` is false.

    Options follow a `?`, as in redis-py's own URLs, for every topology. Sentinels get the user and
    password of the server, or none if they reject these; `sentinel_username` and
    `sentinel_password` are for sentinels with others. Raises ValueError for a URL of another form,
    and for an invalid option.
    """
    scheme, _, rest = url.partition("://")
    transport, _, topology = scheme.partition("+")
    ours: dict[str, Any] = {
        "decode_responses": decode,
        "encoding_errors": FOREIGN,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": None,
    }
    try:
        if topology == "":
            return _checked(Redis.from_url(url, **ours))
        place, _, query = rest.partition("?")
        netloc, _, path = place.partition("/")
        if topology == "cluster":
            options = _options(transport, netloc, path, query)
            nodes = [ClusterNode(*node) for node in _nodes(netloc, DEFAULT_PORT)]
            return RedisCluster(startup_nodes=nodes, **{**ours, **options})
        if topology == "sentinel":
            return _checked(_primary(transport, netloc, path, query, ours))
    except (TypeError, RedisError) as error:
        raise ValueError(f"an option of the URL cannot be used: {error}") from None
    raise ValueError(f"unknown Redis topology {topology!r}: use +sentinel or +cluster, or none")


def _nodes(netloc: str, default_port: int) -> list[tuple[str, int]]:
    nodes = []
    for node in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{node}")
        nodes.append((parts.hostname or "127.0.0.1", parts.port or default_port))
    return nodes


def _options(transport: str, netloc: str, database: str, query: str) -> dict[str, Any]:
    """Return redis-py's options for a URL with one of the hosts, except the host."""
    user, at, _ = netloc.rpartition("@")
    parsed = dict(parse_url(f"{transport}://{user}{at}host/{database}?{query}"))
    for name in ("host", "port", "connection_class"):
        parsed.pop(name, None)
    return {**parsed, "ssl": transport == "rediss"}


def _primary(transport: str, netloc: str, path: str, query: str, ours: dict[str, Any]) -> Redis:
    """Return the server that the sentinels name."""
    service, _, database = path.partition("/")
    if not service:
        raise ValueError(
            "a sentinel URL ends with the service's name: redis+sentinel://host/service"
        )
    options = _options(transport, netloc, database, query)
    own: dict[str, Any] = {
        name.removeprefix("sentinel_"): options.pop(name) or None
        for name in ("sentinel_username", "sentinel_password")
        if name in options
    }
    quick = {
        "socket_connect_timeout": SENTINEL_CONNECT_TIMEOUT_S,
        "retry": Retry(NoBackoff(), retries=0),
    }
    login: dict[str, Any] = {
        name: options[name] for name in ("username", "password") if name in options
    }
    tls = {name: value for name, value in options.items() if name.startswith("ssl")}
    # A sentinel without a password rejects one, so each is also called without it.
    logins: list[dict[str, Any]] = [own] if own else [login, {}] if login else [{}]
    nodes = _nodes(netloc, DEFAULT_SENTINEL_PORT)
    first, *others = (
        Sentinel(nodes, sentinel_kwargs={**quick, **tls, **each})  # type: ignore[no-untyped-call]
        for each in logins
    )
    for other in others:
        first.sentinels += other.sentinels
    primary: Redis = first.master_for(unquote(service), **{**ours, **options})
    return primary


def _checked(client: Redis) -> Redis:
    """Return the client, once its options are valid for a connection. Nothing connects."""
    pool = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)
    return client
