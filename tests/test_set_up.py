"""The steps of `make` before anything is installed."""

import functools
import http.server
import importlib.util
import os
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = Path(__file__).parents[1]
WITH_CERTIFICATES = ROOT / ".ci" / "with_certificates.py"
STORE = "/etc/ssl/certs"

needs_own_mounts = pytest.mark.skipif(
    not hasattr(os, "geteuid")
    or os.geteuid() != 0
    or shutil.which("unshare") is None
    or not Path(STORE).is_dir(),
    reason="another system store needs root, unshare and /etc/ssl/certs",
)

# `make test VENV=...` tests in an environment that uv makes, without pip
needs_pip = pytest.mark.skipif(
    importlib.util.find_spec("pip") is None, reason="this environment has no pip"
)


def make_certificates(folder: Path) -> None:
    """Write the certificate of an authority, and of a server that it vouches for."""
    now = datetime.now(UTC)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in ("Ours", "Index")]
    builder = (
        x509.CertificateBuilder()
        .issuer_name(names[0])
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    authority = (
        builder.subject_name(names[0])
        .public_key(authority_key.public_key())
        .serial_number(1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    address = x509.IPAddress(ip_address("127.0.0.1"))
    server = (
        builder.subject_name(names[1])
        .public_key(server_key.public_key())
        .serial_number(2)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca-certificates.crt").write_bytes(authority.public_bytes(pem))
    (folder / "server.crt").write_bytes(server.public_bytes(pem))
    key = server_key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.key").write_bytes(key)


def make_index(folder: Path) -> None:
    """Write an index with one package, which is empty."""
    package = folder / "simple" / "tiny"
    package.mkdir(parents=True)
    name, about = "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
    with zipfile.ZipFile(package / name, "w") as wheel:
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{about}/WHEEL", tags)
        wheel.writestr(f"{about}/RECORD", "")
    (package / "index.html").write_text(f'<a href="{name}">{name}</a>')


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder by HTTPS, and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Yield an index with a certificate of a private authority."""
    make_certificates(tmp_path)
    make_index(tmp_path)
    with served(tmp_path) as address:
        yield f"{address}/simple"


def install(index: str, folder: Path, store: Path, **environment: str) -> str:
    """Install with uv where `store` is what the system trusts, and return what it prints."""
    uv = str(Path(sys.executable).with_name("uv"))
    target = str(folder / "target")
    command = [sys.executable, str(WITH_CERTIFICATES), uv, "pip", "install", "--no-config"]
    command += ["--quiet", "--index-url", index, "--target", target, "tiny"]
    mounted = f'mount --bind "{store}" {STORE} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *command],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "UV_NO_CACHE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (folder / "target" / "tiny-1.0.dist-info").is_dir()
    return done.stderr


@needs_own_mounts
def test_uv_trusts_the_certificates_of_the_system(index: str, tmp_path: Path) -> None:
    assert install(index, tmp_path, tmp_path) == ""


@needs_own_mounts
def test_uv_trusts_the_certificates_that_the_environment_names_for_pip(
    index: str, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    certificate = str(tmp_path / "ca-certificates.crt")
    assert install(index, tmp_path, empty, PIP_CERT=certificate) == ""


@needs_own_mounts
@needs_pip
def test_uv_trusts_the_certificates_that_pip_is_configured_with(index: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\ncert = {tmp_path / 'ca-certificates.crt'}\n")
    assert install(index, tmp_path, empty, PIP_CONFIG_FILE=str(configuration)) == ""


@needs_own_mounts
def test_uv_uses_its_own_certificates_where_the_system_has_none(index: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    nowhere = str(tmp_path / "none")  # pip's configuration of this machine does not count
    message = install(index, tmp_path, empty, PIP_CONFIG_FILE=nowhere)
    assert "invalid peer certificate" in message
    assert "No CA certificates were loaded" not in message
