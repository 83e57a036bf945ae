"""A real S3 server, moto's, in a process of its own that ends with the test run."""

import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import boto3
import pytest

# One put at a time: moto checks and then stores, so that two simultaneous conditional puts may both
# succeed, which S3 excludes. The server records its requests; tests/s3_requests.py fetches them
# from /opal-requests. It serves only S3: moto needs a third of a request to find the service. A
# listing reads the names of all objects of the bucket, which all tests share; moto would read the
# objects.
_SERVER = """
import base64, collections, json, logging, os, sys, threading, types
os.environ["MOTO_DISABLE_GLOBAL_CORS"] = os.environ["S3_IGNORE_SUBDOMAIN_BUCKETNAME"] = "true"
from moto.s3.models import S3Backend, s3_backends
from moto.server import create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").disabled = True
moto, lock = create_backend_app("s3"), threading.Lock()
list_objects = S3Backend.list_objects
def list_below(self, bucket, prefix, delimiter, marker, max_keys):
    names = [name for name in list(bucket.keys) if name.startswith(prefix or "")]
    keys = {name: bucket.keys.get(name) for name in names}
    keys = {name: key for name, key in keys.items() if key is not None}
    return list_objects(self, types.SimpleNamespace(keys=keys), prefix, delimiter, marker, max_keys)
S3Backend.list_objects = list_below
asked, requests = 0, collections.deque(maxlen=100_000)
def app(environ, start_response):
    global asked
    if environ["PATH_INFO"] == "/opal-requests":
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps([asked, list(requests)]).encode()]
    if environ["PATH_INFO"] == "/opal-objects":
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        for key, data in json.loads(body).items():
            s3_backends["123456789012"]["aws"].put_object("lake", key, base64.b64decode(data))
        start_response("204 No Content", [])
        return []
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
    """Yield the options of `open_storage` for `s3://lake/...` on a new server.

    The bucket exists; the server ends with the block.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        assert endpoint, "moto's server did not start: is moto[server] installed?"
        keys = {
            "aws_access_key_id": "test-key",
            "aws_secret_access_key": "test-secret",
            "region_name": "us-east-1",
        }
        client = boto3.session.Session().client("s3", endpoint_url=endpoint, **keys)
        client.create_bucket(Bucket=BUCKET)
        yield {"endpoint_url": endpoint, "path_style": "true", **keys}
        server.stdin.close()


def put_objects(options: Mapping[str, str], uri: str, objects: Mapping[str, bytes]) -> None:
    """Put many objects below a folder of the bucket, in one request."""
    folder = uri.removeprefix(f"s3://{BUCKET}/")
    body = {f"{folder}/{path}": base64.b64encode(data).decode() for path, data in objects.items()}
    with urllib.request.urlopen(
        options["endpoint_url"] + "/opal-objects", json.dumps(body).encode(), timeout=60
    ):
        pass


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def moto_server(s3_options: dict[str, str]) -> str:
    """Return the server's endpoint URL."""
    return s3_options["endpoint_url"]
