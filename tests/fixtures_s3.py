"""A real S3 server, moto's, in a process of its own that ends with the test run."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest

# moto looks and then stores, so that of two conditional puts at once both may succeed, which S3 rules out: one put at a time.
# The server writes down what it is asked; tests/s3_requests.py fetches that from /opal-requests
_SERVER = """
import collections, json, logging, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").disabled = True
moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
asked, requests = 0, collections.deque(maxlen=100_000)
def app(environ, start_response):
    global asked
    if environ["PATH_INFO"] == "/opal-requests":
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps([asked, list(requests)]).encode()]
    asked += 1
    requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]))
    if environ["REQUEST_METHOD"] != "PUT":
        return moto(environ, start_response)
    with lock:
        return list(moto(environ, start_response))
server = make_server("127.0.0.1", 0, app, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("http://127.0.0.1:%s" % server.server_port, flush=True)
sys.stdin.read()
"""
BUCKET = "lake"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """The options of `open_storage` for `s3://lake/...` on a server that lives as long as the block; the bucket exists."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        assert endpoint, "moto's server did not start: is moto[server] installed?"
        keys = {"aws_access_key_id": "test-key", "aws_secret_access_key": "test-secret", "region_name": "us-east-1"}
        client = boto3.session.Session().client("s3", endpoint_url=endpoint, **keys)
        client.create_bucket(Bucket=BUCKET)
        yield {"endpoint_url": endpoint, "path_style": "true", **keys}
        server.stdin.close()


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def moto_server(s3_options: dict[str, str]) -> str:
    """The server's endpoint URL."""
    return s3_options["endpoint_url"]
