"""Make the certificates by which scheduler, hosts and coordinators recognize each other.

One authority signs a certificate for each role. Dask checks on both sides that the other's is
signed by it, so only who has one of the keys can connect.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.errors import InvalidInput, Problem
from labledger.files.durable_files import make_folder
from labledger.resources import require_for

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ROLES = ("scheduler", "worker", "client")
_VALID_DAYS = 730
_EARLIER = datetime.timedelta(days=1)
"""How far before now certificates begin to be valid: clocks of machines differ."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of one role, and those of the authority."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def of_role(cls, folder: Path, role: str) -> CertificateFiles:
        """Return the files that `make_certificates` writes for a role."""
        return cls(folder / "ca.pem", folder / f"{role}.pem", folder / f"{role}-key.pem")


def make_certificates(folder: Path) -> list[Path]:
    """Write an authority and a certificate with a key for each role into `folder`.

    Return the files. The keys can be read by this user alone. Raises `InvalidInput` if one of the
    files exists, and `ExtraMissing`.
    """
    require_for("making certificates", "dask", "cryptography")
    names = ["ca.pem", "ca-key.pem"]
    names += [f"{role}{suffix}.pem" for role in ROLES for suffix in ("", "-key")]
    existing = [folder / name for name in names if (folder / name).exists()]
    if existing:
        problem = Problem(str(existing[0]), "it exists, and is not replaced")
        raise InvalidInput("the folder of the certificates", [problem])
    make_folder(folder)
    ca_key = _new_key()
    ca = _certificate("labledger cluster authority", ca_key, None, ca_key)
    _write(folder / "ca.pem", _pem(ca), secret=False)
    _write(folder / "ca-key.pem", _key_pem(ca_key), secret=True)
    for role in ROLES:
        files, key = CertificateFiles.of_role(folder, role), _new_key()
        certificate = _certificate(f"labledger {role}", key, ca, ca_key)
        _write(files.cert, _pem(certificate), secret=False)
        _write(files.key, _key_pem(key), secret=True)
    return [folder / name for name in names]


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: EllipticCurvePrivateKey,
) -> x509.Certificate:
    """Return a signed certificate; that of the authority itself if there is no issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=issuer is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if issuer is not None:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, *, secret: bool) -> None:
    mode = 0o600 if secret else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
