"""A home's certificate: made once, its user's alone, good for loopback."""

from pathlib import Path

from cryptography import x509

from cli.local import certificate


def test_a_certificate_is_created_once(tmp_path: Path) -> None:
    first = certificate.ray_environment(tmp_path)
    made = Path(first["RAY_TLS_SERVER_CERT"]).read_bytes()
    assert certificate.ray_environment(tmp_path) == first
    assert Path(first["RAY_TLS_SERVER_CERT"]).read_bytes() == made


def test_only_the_user_can_read_the_private_key(tmp_path: Path) -> None:
    key = Path(certificate.ray_environment(tmp_path)["RAY_TLS_SERVER_KEY"])
    assert key.stat().st_mode & 0o077 == 0


def test_the_certificate_is_valid_for_loopback(tmp_path: Path) -> None:
    pem = Path(certificate.ray_environment(tmp_path)["RAY_TLS_CA_CERT"]).read_bytes()
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert [str(ip) for ip in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
