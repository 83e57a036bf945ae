"""A real S3 server, moto's, in a process of its own that ends with the test run."""

import subprocess
import sys
from collections.abc import Iterator

import boto3
import pytest

_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").disabled = True
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""
BUCKET = "lake"


@pytest.fixture(scope="session")
def moto_server() -> Iterator[str]:
    """The server's endpoint URL."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        assert endpoint, "moto's server did not start: is moto[server] installed?"
        yield endpoint
        server.stdin.close()


@pytest.fixture(scope="session")
def s3_options(moto_server: str) -> dict[str, str]:
    """Options of `open_storage` for `s3://lake/...`; the bucket exists."""
    keys = {"aws_access_key_id": "test-key", "aws_secret_access_key": "test-secret", "region_name": "us-east-1"}
    client = boto3.session.Session().client("s3", endpoint_url=moto_server, **keys)
    client.create_bucket(Bucket=BUCKET)
    return {"endpoint_url": moto_server, "path_style": "true", **keys}
