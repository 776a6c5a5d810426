"""Every form of URL reaches a real Redis of that kind."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from router.index.slots import claim, renew, withdraw
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, connect
from tests.ports import free_ports
from tests.router.index_redis import live
from tests.router.redis_cluster import cluster_of
from tests.router.redis_process import RedisProcess, running


async def keeps_a_lease(url: str) -> None:
    """Claims a slot there, renews its lease, reads it and ends it."""
    redis: AsyncRedis = connect(url)
    try:
        async with asyncio.timeout(60):
            slot = await claim(redis, "main", "a")
            lease = json.dumps({"incarnation": "a"})
            assert await renew(redis, "main", slot, "a", lease)
            assert await live(redis, "main") == {slot: lease}
            await withdraw(redis, "main", slot, "a")
            assert await live(redis, "main") == {}
    finally:
        await redis.aclose()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def plain(tmp_path: Path, port: int) -> Iterator[RedisProcess]:
    users = "user ray on >p@ss:/word ~{afx:* +@all\nuser default off\n"
    settings = f"port {port}\nunixsocket {tmp_path}/s\n{users}"
    with running(tmp_path, port, settings) as server:
        yield server


async def test_a_user_with_a_password_reaches_its_keys(plain: RedisProcess) -> None:
    await keeps_a_lease(f"redis://ray:p%40ss%3A%2Fword@127.0.0.1:{plain.port}/0")


async def test_a_unix_socket_is_reached(plain: RedisProcess, tmp_path: Path) -> None:
    await keeps_a_lease(f"unix://ray:p%40ss%3A%2Fword@{tmp_path}/s")


async def test_a_tls_url_verifies_the_certificate(tmp_path: Path, port: int) -> None:
    certificate, key = self_signed(tmp_path)
    files = f"tls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {certificate}\n"
    settings = f"port 0\ntls-port {port}\ntls-auth-clients no\n{files}"
    try:
        server = running(tmp_path, port, settings)
        server.__enter__()
    except AssertionError:
        pytest.skip("the embedded Redis has no TLS (a redis-server on PATH is taken instead of it)")
    try:
        await keeps_a_lease(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
        with pytest.raises(Exception, match=r"(?i)certificate"):
            await keeps_a_lease(f"rediss://127.0.0.1:{port}/0")
    finally:
        server.__exit__(None, None, None)


async def test_the_keys_of_a_pool_are_on_one_shard_of_a_cluster(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2) as servers:
        await keeps_a_lease(f"redis+cluster://127.0.0.1:1,127.0.0.1:{servers[0].port}")
        shards = [connect(f"redis://127.0.0.1:{server.port}/0") for server in servers]
        held = [len(await shard.keys()) for shard in shards]
        assert min(held) == 0 < max(held)
        for shard in shards:
            await shard.aclose()


async def test_sentinel_names_the_primary(tmp_path: Path) -> None:
    primary, sentinel = free_ports(2)
    watch = f"sentinel monitor main 127.0.0.1 {primary} 1\n"
    users = "user ray on >secret ~* +@all\n"
    with (
        running(tmp_path / "primary", primary, f"port {primary}\n{users}"),
        running(tmp_path / "sentinel", sentinel, f"port {sentinel}\n{watch}", "--sentinel"),
    ):
        await keeps_a_lease(f"redis+sentinel://ray:secret@127.0.0.1:1,127.0.0.1:{sentinel}/main/1")


SENTINELS = {
    "the same password": ("requirepass secret", ":secret@", ""),
    "another password": ("requirepass other", ":secret@", "?sentinel_password=other"),
    "no password": ("", ":secret@", ""),
    "no password, said so": ("", ":secret@", "?sentinel_password="),
    "an option": ("requirepass secret", ":secret@", "?socket_keepalive=true"),
}


@pytest.mark.parametrize(("settings", "login", "query"), SENTINELS.values(), ids=SENTINELS)
async def test_sentinels_with_and_without_a_password_name_the_primary(
    tmp_path: Path, settings: str, login: str, query: str
) -> None:
    primary, sentinel = free_ports(2)
    watch = f"sentinel monitor main 127.0.0.1 {primary} 1\nsentinel auth-pass main secret\n"
    server = f"port {primary}\nrequirepass secret\n"
    with (
        running(tmp_path / "primary", primary, server),
        running(tmp_path / "s", sentinel, f"port {sentinel}\n{watch}{settings}\n", "--sentinel"),
    ):
        await keeps_a_lease(f"redis+sentinel://{login}127.0.0.1:{sentinel}/main/0{query}")


async def test_a_sentinel_with_another_password_is_refused(tmp_path: Path) -> None:
    primary, sentinel = free_ports(2)
    watch = f"sentinel monitor main 127.0.0.1 {primary} 1\nrequirepass other\n"
    with (
        running(tmp_path / "primary", primary, f"port {primary}\n"),
        running(tmp_path / "s", sentinel, f"port {sentinel}\n{watch}", "--sentinel"),
    ):
        redis = connect(f"redis+sentinel://:secret@127.0.0.1:{sentinel}/main")
        with pytest.raises(REDIS_FAILURES):
            await redis.ping()
        await redis.aclose()


async def test_options_of_a_cluster_url_reach_its_connections() -> None:
    url = "rediss+cluster://user:p%40ss@h:6380,i/?ssl_ca_certs=/ca.pem&ssl_cert_reqs=none"
    kwargs = connect(url).connection_kwargs  # type: ignore[union-attr]
    assert (kwargs["ssl_ca_certs"], kwargs["ssl_cert_reqs"]) == ("/ca.pem", "none")
    assert (kwargs["username"], kwargs["password"]) == ("user", "p@ss")


async def test_options_of_a_sentinel_url_reach_server_and_sentinels() -> None:
    redis = connect("rediss+sentinel://:a@h:1,i/main/3?ssl_ca_certs=/ca.pem")
    pool: Any = redis.connection_pool  # type: ignore[union-attr]
    assert pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"
    assert pool.connection_kwargs["db"] == 3
    asked = [of.connection_pool.connection_kwargs for of in pool.sentinel_manager.sentinels]
    assert {of["ssl_ca_certs"] for of in asked} == {"/ca.pem"}
    assert [(of["host"], of.get("password")) for of in asked] == [
        *(("h", "a"), ("i", "a")),
        *(("h", None), ("i", None)),
    ]


@pytest.mark.parametrize(("decode", "reply"), [(True, "value"), (False, b"value")])
async def test_replies_are_bytes_where_decoding_is_not_wanted(
    tmp_path: Path, port: int, decode: bool, reply: str | bytes
) -> None:
    with running(tmp_path, port, f"port {port}\n"):
        redis = connect(f"redis://127.0.0.1:{port}/0", decode=decode)
        await redis.set("key", "value")
        assert await redis.get("key") == reply
        await redis.aclose()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://host", "service"),
        ("redis+sentinel://host/", "service"),
        ("redis+other://host", "unknown Redis topology 'other'"),
        ("http://host", "scheme"),
        ("redis://host?ssl_ca_certs=/ca", "option"),
        ("redis://host?nonsense=1", "option"),
        ("redis+cluster://host/?nonsense=1", "option"),
        ("redis+sentinel://host/main?nonsense=1", "option"),
        ("rediss://host?ssl_cert_reqs=maybe", "option"),
        ("redis://host?socket_timeout=soon", "socket_timeout"),
        ("redis+cluster://host?socket_timeout=soon", "socket_timeout"),
    ],
)
def test_a_url_of_another_form_is_a_value_error(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        connect(url)


def self_signed(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    ssl.create_default_context().load_verify_locations(pem)
    return pem, private
