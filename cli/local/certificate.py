"""TLS for a local Ray: without it Ray Serve's replicas accept pickled calls from any address.

Ray Serve 2.60 binds each replica's gRPC server to all interfaces and has no option for it. With
RAY_USE_TLS a caller needs this home's certificate, which is both the authority and the certificate
of every process: https://docs.ray.io/en/latest/ray-core/configure.html#tls-authentication
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.local.ports import LOOPBACK

LIFETIME = datetime.timedelta(days=3650)


def ray_environment(folder: Path) -> dict[str, str]:
    """Return Ray's TLS variables. Certificate and key are created in `folder` the first time."""
    certificate, key = folder / "ray-certificate.pem", folder / "ray-key.pem"
    if not (certificate.exists() and key.exists()):
        _make(certificate, key)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }


def _make(certificate: Path, key: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "antefix")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write(key, private.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    _write(certificate, signed.public_bytes(serialization.Encoding.PEM))


def _write(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.replace(path)
