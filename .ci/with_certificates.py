"""Run pip or uv, given as arguments, so that both trust the same certificates.

pip takes its certificates from its configuration or, as Debian's and every newer one, from the
system. uv reads neither by itself, so that behind a company's proxy it fails where pip does not.
"""

import ast
import os
import ssl
import subprocess
import sys
from pathlib import Path

# Bundles of Debian, Red Hat, SUSE, Alpine, and macOS and the BSDs
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def variables(environment: dict[str, str]) -> dict[str, str]:
    """Return additions to an environment; none where it names its certificates."""
    if "SSL_CERT_FILE" in environment:
        return {}
    configured = environment.get("PIP_CERT") or _configured_for_pip()
    if configured:
        return {"SSL_CERT_FILE": configured}
    bundle = _system_bundle()
    if bundle is not None:
        return {"UV_SYSTEM_CERTS": "true", "PIP_CERT": bundle}
    # Asked to use a store that is empty, uv fails also where its own certificates would do
    has_store = sys.platform in ("darwin", "win32")
    return {"UV_SYSTEM_CERTS": "true"} if has_store else {}


def _configured_for_pip() -> str | None:
    """Return the bundle in pip's configuration."""
    # `pip config get` does not read every file of it
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    settings = dict(line.split("=", 1) for line in listed.stdout.splitlines() if "=" in line)
    value = settings.get("install.cert", settings.get("global.cert"))
    return None if value is None else str(ast.literal_eval(value))


def _system_bundle() -> str | None:
    default = ssl.get_default_verify_paths().cafile
    for path in (default, *BUNDLES):
        if path is not None and Path(path).is_file() and Path(path).stat().st_size > 0:
            return path
    return None


if __name__ == "__main__":
    command = sys.argv[1:]
    os.execvpe(command[0], command, {**os.environ, **variables(dict(os.environ))})
