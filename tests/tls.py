"""Dask by TLS, with a certificate made for a test."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(folder: Path) -> None:
    """Writes cert.pem, a certificate of its own authority, and key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedcore test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def tls_settings(folder: Path) -> dict[str, object]:
    """Dask's settings, as the documentation gives them."""
    prefix, found = "distributed.comm.tls", {"distributed.comm.require-encryption": True}
    found[f"{prefix}.ca-file"] = str(folder / "cert.pem")
    for role in ("scheduler", "worker", "client"):
        found[f"{prefix}.{role}.cert"] = str(folder / "cert.pem")
        found[f"{prefix}.{role}.key"] = str(folder / "key.pem")
    return found


def tls_environment(folder: Path) -> dict[str, str]:
    """The same as environment variables."""
    return {
        f"DASK_{name.replace('.', '__').replace('-', '_').upper()}": str(value)
        for name, value in tls_settings(folder).items()
    }
