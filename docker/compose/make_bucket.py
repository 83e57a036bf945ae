"""Makes the lake's bucket, if it is not there. Who asks and where is in the connection opal_default, as Airflow gets it."""

import json
import sys
from pathlib import Path

import boto3

connection = json.loads(Path("/run/secrets/opal_connection").read_text())
bucket = connection["host"].partition("://")[2].partition("/")[0]
client = boto3.client(
    "s3",
    endpoint_url=connection["extra"]["endpoint_url"],
    region_name=connection["extra"]["region_name"],
    aws_access_key_id=connection["login"],
    aws_secret_access_key=connection["password"],
)
if bucket not in [known["Name"] for known in client.list_buckets()["Buckets"]]:
    client.create_bucket(Bucket=bucket)
    sys.stdout.write(f"made the bucket {bucket}\n")
