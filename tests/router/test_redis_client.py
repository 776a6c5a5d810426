"""Every form of URL reaches a real Redis of that kind."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import islice
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deployments.local.ports import LOOPBACK, free_ports, is_free
from router.load import publish, read, withdraw
from router.redis_client import AsyncRedis, connect
from tests.router.loads import load
from tests.router.redis_process import RedisProcess, running


async def keeps_loads(url: str) -> None:
    """Publishes, reads and withdraws a load there."""
    redis: AsyncRedis = connect(url)
    try:
        async with asyncio.timeout(20):
            await publish(redis, "main", load("a"))
            await publish(redis, "main", load("b"))
            assert set(await read(redis, "main")) == {"a", "b"}
            await withdraw(redis, "main", "a")
            assert set(await read(redis, "main")) == {"b"}
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
    await keeps_loads(f"redis://ray:p%40ss%3A%2Fword@127.0.0.1:{plain.port}/0")


async def test_a_unix_socket_is_reached(plain: RedisProcess, tmp_path: Path) -> None:
    await keeps_loads(f"unix://ray:p%40ss%3A%2Fword@{tmp_path}/s")


async def test_tls_is_spoken(tmp_path: Path, port: int) -> None:
    certificate, key = self_signed(tmp_path)
    files = f"tls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {certificate}\n"
    settings = f"port 0\ntls-port {port}\ntls-auth-clients no\n{files}"
    try:
        server = running(tmp_path, port, settings)
        server.__enter__()
    except AssertionError as error:
        pytest.skip(f"this redis-server has no TLS: {error}")
    try:
        await keeps_loads(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
        with pytest.raises(Exception, match=r"(?i)certificate"):
            await keeps_loads(f"rediss://127.0.0.1:{port}/0")
    finally:
        server.__exit__(None, None, None)


async def test_the_keys_of_a_pool_are_on_one_shard_of_a_cluster(tmp_path: Path) -> None:
    # the shards speak to each other on port + 10000
    free = (port for port in range(21000, 30000) if is_free(LOOPBACK, port))
    ports = list(islice((port for port in free if is_free(LOOPBACK, port + 10000)), 2))
    with ExitStack() as stack:
        for number, port in enumerate(ports):
            settings = f"port {port}\ncluster-enabled yes\n"
            stack.enter_context(running(tmp_path / str(number), port, settings))
        await cluster_of(ports)
        url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{ports[0]}"
        await keeps_loads(url)
        shards = [connect(f"redis://127.0.0.1:{port}/0") for port in ports]
        held = [await shard.keys() for shard in shards]
        assert sorted(map(len, held)) == [0, 2]
        for shard in shards:
            await shard.aclose()


async def cluster_of(ports: list[int]) -> None:
    share = 16384 // len(ports)
    shards = [connect(f"redis://127.0.0.1:{port}/0") for port in ports]
    for number, shard in enumerate(shards):
        slots = [str(slot) for slot in range(number * share, (number + 1) * share)]
        await shard.execute_command("CLUSTER", "ADDSLOTS", *slots)
        await shard.execute_command("CLUSTER", "MEET", "127.0.0.1", str(ports[0]))
    for shard in shards:
        await wait_for(shard, "SLOTS", lambda reply: reply.count("127.0.0.1") >= len(ports))
        await wait_for(shard, "INFO", lambda reply: "cluster_state:ok" in reply)
        await shard.aclose()


async def wait_for(shard: AsyncRedis, question: str, enough: Callable[[str], bool]) -> None:
    async with asyncio.timeout(15):
        while not enough(  # noqa: ASYNC110  # each look is a command
            str(await shard.execute_command("CLUSTER", question))
        ):
            await asyncio.sleep(0.05)


async def test_sentinel_names_the_primary(tmp_path: Path) -> None:
    primary, sentinel = free_ports(2)
    watch = f"sentinel monitor main 127.0.0.1 {primary} 1\n"
    users = "user ray on >secret ~* +@all\n"
    with (
        running(tmp_path / "primary", primary, f"port {primary}\n{users}"),
        running(tmp_path / "sentinel", sentinel, f"port {sentinel}\n{watch}", "--sentinel"),
    ):
        await keeps_loads(f"redis+sentinel://ray:secret@127.0.0.1:1,127.0.0.1:{sentinel}/main/1")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://host", "service"),
        ("redis+sentinel://host/", "service"),
        ("redis+other://host", "unknown Redis topology 'other'"),
        ("http://host", "scheme"),
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
