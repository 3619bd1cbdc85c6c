"""Where a cluster is: the value of `--on`, an address or a file, and its certificates.

A file gives an address with TLS files, or a Dask cluster class that the run starts and ends.
Connections to other machines without TLS are refused, unless the user allows them. One authority
signs a certificate for each role.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from labledger import clock
from labledger.errors import InvalidInput, Parameter, Problem
from labledger.experiment.authored_fields import FieldPath
from labledger.files.durable_files import make_folder
from labledger.files.lab_folder import expand_home
from labledger.files.permissions import Permission
from labledger.files.project_files import read_regular
from labledger.hosts.host_messages import StorePlace
from labledger.hosts.host_service import HostSettings
from labledger.records import JsonObject, json_schemas
from labledger.records.bounded_yaml import NotYaml, load_yaml
from labledger.resources import require_for

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from distributed import Security

ROLES = ("scheduler", "worker", "client")
"""The roles of processes in a cluster. Each role has a certificate."""
_SCHEMES = ("tcp", "tls")
_BY_COORDINATOR = "coordinator"
"""The value of `model_keys` with which the coordinator sends the keys."""
_WITHOUT_TLS = "keys of model providers would be sent without TLS"
_TLS_FOR_KEYS = "use TLS, or leave `model_keys` out: each host then reads them itself"
_MAX_BYTES = 1 << 20
"""The largest cluster file that is read."""
_OF_CLASSES = ("arguments", "scale", "host")
_STORE_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^@?#\s]*[^@?#\s/]/*")
_SECRET_OPTION = re.compile(
    r"(?<!kms)key|secret|token|passw|credential|connection_string|auth", re.IGNORECASE
)
"""Names of fsspec's options that hold secrets."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The authority, and the certificate and key of this side."""

    ca: Path
    cert: Path
    key: Path

    def security(self) -> Security:
        """Return Dask's `Security` for every role. Raises `InvalidInput` for a missing file."""
        from distributed import Security

        problems = [
            Problem(str(path), "there is no such file")
            for path in (self.ca, self.cert, self.key)
            if not path.is_file()
        ]
        if problems:
            raise InvalidInput("the files for TLS", problems)
        pair: dict[str, Any] = {}
        for role in ROLES:
            pair |= {f"tls_{role}_cert": str(self.cert), f"tls_{role}_key": str(self.key)}
        return Security(  # type: ignore[no-untyped-call]
            tls_ca_file=str(self.ca), require_encryption=True, **pair
        )

    def settings(self) -> dict[str, Any]:
        """Return Dask's configuration for these files, for every role."""
        pair = {"cert": str(self.cert), "key": str(self.key)}
        return {
            "distributed.comm.require-encryption": True,
            "distributed.comm.tls.ca-file": str(self.ca),
            **{f"distributed.comm.tls.{role}": pair for role in ROLES},
        }


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that `--on` names."""

    given: str
    """The value of `--on`, which holds no secrets."""
    address: str | None
    """The scheduler's address; None for a cluster class."""
    tls: TlsFiles | None = None
    insecure: bool = False
    cluster_class: str | None = None
    arguments: JsonObject = field(default_factory=dict)
    scale: int | None = None
    host: HostSettings | None = None
    """How each worker that the class starts serves its host."""
    object_store: StorePlace | None = None
    """The object store for large files; None to send them through the scheduler."""
    sends_model_keys: bool = False
    """Whether the coordinator reads the keys of model providers and sends them to the hosts."""

    @property
    def permissions(self) -> tuple[Permission, ...]:
        """Return the permissions that starting the cluster needs: none for an address.

        The arguments of a class can start any program, so the permission covers them too.
        """
        if self.cluster_class is None:
            return ()
        arguments = json.dumps(self.arguments, sort_keys=True, default=str)
        subject = {"class": self.cluster_class, "arguments": arguments}
        action = (
            f"start {self.cluster_class} with the arguments {arguments}, which can run programs"
        )
        return (Permission("cluster_class", subject, action, self.given),)

    @classmethod
    def read(cls, given: str, *, insecure: bool = False, tls: TlsFiles | None = None) -> Self:
        """Return the cluster of an address (``tls://…``, ``tcp://…``) or of a file.

        `tls` are used instead of the file's.

        Raises `InvalidInput`, also for an address without TLS that is not this machine's.
        """
        if "://" in given:
            cluster = cls(given, given, insecure=insecure)
        else:
            cluster = cls._of_file(Path(given), insecure=insecure)
        if tls is not None:
            cluster = replace(cluster, tls=tls)
        cluster.require_secure()
        return cluster

    @classmethod
    def _of_file(cls, path: Path, *, insecure: bool) -> Self:
        try:
            document = load_yaml(read_regular(path, _MAX_BYTES))
        except OSError as error:
            hint = "`on=` takes the address of a scheduler, such as tls://HOST:8786, or a file"
            text = f"{path} cannot be read: {error.strerror}"
            raise _invalid(Parameter("on"), text, hint=hint) from error
        except NotYaml as error:
            raise _invalid(str(path), str(error)) from None
        problems = [
            Problem(str(path), message, field=json_schemas.dotted(field) or None)
            for field, message in _file_problems(document)
        ]
        if problems:
            raise InvalidInput("the cluster", problems)
        folder, tls, host = path.absolute().parent, document.get("tls"), document.get("host")
        store, scale = document.get("object_store"), document.get("scale")
        return cls(
            given=str(path.absolute()),
            address=document.get("address"),
            tls=None if tls is None else TlsFiles(**{key: folder / tls[key] for key in tls}),
            insecure=insecure or document.get("insecure", False),
            cluster_class=document.get("cluster"),
            arguments=document.get("arguments") or {},
            scale=None if scale is None else int(scale),
            host=None if host is None else _host_settings(folder, host),
            object_store=None if store is None else StorePlace(**store),
            sends_model_keys=document.get("model_keys") == _BY_COORDINATOR,
        )

    def security(self) -> Security | None:
        """Return how connections are secured; None to use Dask's own configuration."""
        from distributed import Security

        if self.tls is not None:
            return self.tls.security()
        if self.address is not None:
            self._require_tls_files(Security())  # type: ignore[no-untyped-call]
            return None
        temporary: Security = Security.temporary()  # type: ignore[no-untyped-call]
        return temporary

    def _require_tls_files(self, configured: Security) -> None:
        """Raise `InvalidInput` for an address with TLS if no TLS files are configured."""
        certificates = (configured.tls_client_cert, configured.tls_worker_cert)  # type: ignore[attr-defined]
        has_files = configured.tls_ca_file and any(certificates)  # type: ignore[attr-defined]
        if not str(self.address).startswith("tls://") or has_files:
            return
        raise _invalid(
            str(self.address),
            "TLS needs certificates, and no files are given",
            hint="name them in a cluster file (`tls: {ca: …, cert: …, key: …}`), or with "
            "`tls_ca=`, `tls_cert=` and `tls_key=` of a worker; `labledger hosts make-certificates "
            "DIR` makes the files. Dask's own configuration (distributed.comm.tls) works as well",
        )

    def require_secure(self) -> None:
        """Raise `InvalidInput` if others could read or change messages to the scheduler."""
        has_tls = not self.insecure and (self.address or "tls:").startswith("tls:")
        if self.sends_model_keys and not has_tls:
            raise _invalid(self.given, _WITHOUT_TLS, field="model_keys", hint=_TLS_FOR_KEYS)
        if self.address is not None:
            require_secure(self.address, insecure=self.insecure, has_tls=self.tls is not None)


def require_secure(address: str, *, insecure: bool, has_tls: bool) -> None:
    """Raise `InvalidInput` for an address that is unusable, or neither secure nor local."""
    scheme, host = _scheme_and_host(address)
    if scheme not in _SCHEMES or not host:
        raise _invalid(address, "expected tls://HOST:PORT or tcp://HOST:PORT")
    if scheme == "tcp" and has_tls:
        raise _invalid(address, "TLS files are given, and an address with tcp does not use them")
    if not insecure and not is_secure(address):
        raise _invalid(
            address,
            "without TLS, anyone on the network could run programs on every host",
            hint="`labledger hosts make-certificates DIR` makes the files for TLS; then use "
            "tls://…, or `insecure=True` on a network that only you can reach",
        )


def _invalid(
    where: str, message: str, *, field: str | None = None, hint: str | None = None
) -> InvalidInput:
    return InvalidInput("the cluster", [Problem(where, message, field=field, hint=hint)])


def is_secure(address: str) -> bool:
    """Return whether an address has TLS, or is a loopback address of this machine."""
    scheme, host = _scheme_and_host(address)
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return scheme == "tls" or is_local


def _scheme_and_host(address: str) -> tuple[str, str]:
    """Return both parts of an address; empty ones if it is not an address."""
    try:
        parts = urlsplit(address)
        return ("", "") if parts.port == 0 else (parts.scheme, parts.hostname or "")
    except ValueError:  # Such as [ without ], or a port that is not a number.
        return "", ""


def _host_settings(folder: Path, host: JsonObject) -> HostSettings:
    authored, gpus = host.get("folder"), host.get("gpus")
    host_folder = None if authored is None else folder / expand_home(authored)
    gpus = None if gpus is None else int(gpus)
    return HostSettings(int(host.get("slots", 1)), host_folder, host.get("name"), gpus)


def _file_problems(document: Any) -> Iterator[tuple[FieldPath, str]]:
    """Yield the problems of the content of a cluster file, each with its field."""
    if not isinstance(document, dict):
        # The file is not a cluster file and may be a secret, so no message repeats its text.
        yield (), "expected a mapping"
        return
    yield from json_schemas.problems(document, "cluster_file_v1")
    if ("address" in document) == ("cluster" in document):
        yield (), "expected exactly one of `address` and `cluster`"
    if "address" in document:
        for key in _OF_CLASSES:
            if key in document:
                yield (key,), "only for a `cluster` that the run starts"
    if isinstance(store := document.get("object_store"), dict):
        # The URL may hold a password, so no message repeats it.
        url = store.get("url")
        if isinstance(url, str) and ("::" in url or not _STORE_URL.fullmatch(url)):
            expected = "a URL such as s3://BUCKET/FOLDER, without a password"
            yield ("object_store", "url"), f"expected {expected}"
        yield from _secret_options(store.get("options"), ("object_store", "options"))


def _secret_options(options: Any, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Yield the options whose names suggest secrets, which do not belong into this file."""
    for key, value in options.items() if isinstance(options, dict) else ():
        if _SECRET_OPTION.search(str(key)):
            message = "each machine has its own credentials, from its environment"
            yield (*path, str(key)), message
        else:
            yield from _secret_options(value, (*path, str(key)))


_VALID_DAYS = 730
_EARLIER = datetime.timedelta(days=1)
"""How long before now certificates become valid, because clocks of machines differ."""


def make_certificates(folder: Path) -> list[Path]:
    """Write an authority and a certificate with a key for each role into `folder`.

    Return the files. Only this user can read the keys. Raises `InvalidInput` if one of the
    files exists, and `ExtraMissing`.
    """
    require_for("making certificates", "dask", "cryptography")
    names = [f"{name}{suffix}.pem" for name in ("ca", *ROLES) for suffix in ("", "-key")]
    existing = [folder / name for name in names if (folder / name).exists()]
    if existing:
        problem = Problem(str(existing[0]), "it exists, and will not be replaced")
        raise InvalidInput("the folder of the certificates", [problem])
    make_folder(folder)
    ca_key = _new_key()
    ca = _certificate("labledger cluster authority", ca_key, None, ca_key)
    _write_pair(folder, "ca", ca, ca_key)
    for role in ROLES:
        key = _new_key()
        _write_pair(folder, role, _certificate(f"labledger {role}", key, ca, ca_key), key)
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
    """Return a signed certificate. Without an `issuer`, it is the authority's own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = clock.now()
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


def _write_pair(
    folder: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
) -> None:
    """Write a certificate and its key. Only this user can read the key."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for suffix, content, mode in (
        ("", certificate.public_bytes(Encoding.PEM), 0o644),
        ("-key", key_pem, 0o600),
    ):
        path = folder / f"{name}{suffix}.pem"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
