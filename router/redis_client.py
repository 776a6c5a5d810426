"""One way to reach Redis, whatever its URL says.

    redis://  rediss://  unix://                  one server (rediss: TLS; user:password@: ACL)
    redis+sentinel://host:port,host:port/service  the primary that Sentinel names
    redis+cluster://host:port,host:port           Redis Cluster

`rediss+sentinel` and `rediss+cluster` are the same over TLS. Connecting is lazy: a server
that is down shows at the first command, as one of REDIS_FAILURES.
"""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

AsyncRedis: TypeAlias = "Redis | RedisCluster"

# What a Redis that is down, slow or wrong raises; redis-py's cluster errors are no RedisError.
REDIS_FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
# No timeout of redis-py's own beside it: callers have theirs, and on Python 3.11 the
# asyncio.wait_for that it is made of can swallow a cancellation.
CONNECT_TIMEOUT_S = 1.0
# What is no UTF-8 was written by a stranger: it is read as something nobody wrote.
FOREIGN = "replace"
# Short, and without retries: the next sentinel is asked within one command's time.
SENTINEL_CONNECT_TIMEOUT_S = 0.25


def _nodes(netloc: str, default_port: int) -> list[tuple[str, int]]:
    nodes = []
    for node in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{node}")
        nodes.append((parts.hostname or "127.0.0.1", parts.port or default_port))
    return nodes


def connect(url: str, decode: bool = True) -> AsyncRedis:
    """A client whose replies are str, or bytes where `decode` is false.

    Raises ValueError for a URL of another form.
    """
    scheme, _, rest = url.partition("://")
    transport, _, topology = scheme.partition("+")
    if topology == "":
        return Redis.from_url(
            url,
            decode_responses=decode,
            encoding_errors=FOREIGN,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None,
        )
    netloc, _, path = rest.partition("/")
    user, _, password = netloc.rpartition("@")[0].partition(":")
    username, secret = unquote(user) or None, unquote(password) or None
    ssl = transport == "rediss"
    if topology == "cluster":
        startup = [ClusterNode(host, port) for host, port in _nodes(netloc, DEFAULT_PORT)]
        return RedisCluster(
            startup_nodes=startup,
            decode_responses=decode,
            encoding_errors=FOREIGN,
            ssl=ssl,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None,
            username=username,
            password=secret,
        )
    if topology == "sentinel":
        service, _, database = path.partition("/")
        if not service:
            raise ValueError(
                "a sentinel URL ends with the service's name: redis+sentinel://host/service"
            )
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            _nodes(netloc, DEFAULT_SENTINEL_PORT),
            sentinel_kwargs={
                "socket_connect_timeout": SENTINEL_CONNECT_TIMEOUT_S,
                "retry": Retry(NoBackoff(), retries=0),
                "ssl": ssl,
            },
        )
        primary: Redis = sentinel.master_for(
            service,
            db=int(database or 0),
            ssl=ssl,
            decode_responses=decode,
            encoding_errors=FOREIGN,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None,
            username=username,
            password=secret,
        )
        return primary
    raise ValueError(f"unknown Redis topology {topology!r}: use +sentinel or +cluster, or none")
