"""Create the lake's bucket, if it is missing.

Airflow's connection opal_default has the store's address and the credentials.
"""

import json
import sys
from pathlib import Path

import boto3

connection = json.loads(Path("/run/secrets/opal_connection").read_text())
# The host is a URI of a folder: s3://bucket/folder
bucket = connection["host"].partition("://")[2].partition("/")[0]
client = boto3.client(
    "s3",
    endpoint_url=connection["extra"]["endpoint_url"],
    region_name=connection["extra"]["region_name"],
    aws_access_key_id=connection["login"],
    aws_secret_access_key=connection["password"],
)
existing = [entry["Name"] for entry in client.list_buckets()["Buckets"]]
if bucket not in existing:
    client.create_bucket(Bucket=bucket)
    sys.stdout.write(f"created the bucket {bucket}\n")
