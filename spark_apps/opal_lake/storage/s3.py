"""A store in an S3 bucket. Creation is a conditional PUT: the bucket's service must honour `If-None-Match: *`."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa
from botocore.exceptions import ClientError

from opal_lake.errors import InvalidInputError, NotWrittenError, StorageError
from opal_lake.storage.paths import check_length, check_path, check_prefix, is_path
from opal_lake.storage.protocol import StoredObject
from opal_lake.storage.s3_client import (
    S3Options,
    check_options,
    error_code,
    error_status,
    s3_client,
    s3_errors,
    told_us,
    translated,
    was_retried,
)
from opal_lake.storage.uris import bucket_and_prefix

_DELETE_BATCH = 1000
_REFUSED = (403, 404)  # no right to write, no such bucket
_CONFLICT_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Storage:
    """Objects of a bucket whose keys start with `prefix`. Holds no client, so it can be pickled and shipped."""

    uri: str
    bucket: str
    prefix: str
    options: S3Options = field(default=(), repr=False)

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str] | None = None) -> "S3Storage":
        bucket, prefix = bucket_and_prefix(uri)
        if bucket.endswith("--x-s3"):
            raise InvalidInputError(
                f"bucket '{bucket}' is a directory bucket, which does not list in order: use a general purpose bucket"
            )
        return cls(
            uri=uri.rstrip("/"), bucket=bucket, prefix=prefix, options=check_options(options or {})
        )

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        check_length(length)
        key = self._key(path)
        with s3_errors(self.bucket, key):
            try:
                body = self._client().get_object(
                    Bucket=self.bucket, Key=key, **_range(start, length)
                )["Body"]
            except ClientError as error:
                if error_code(error) == "InvalidRange":
                    return b""
                raise
            with body:
                data: bytes = body.read()
        return data if length is None else data[:length]

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        key = self._key(path)
        for pause_s in _CONFLICT_PAUSES_S:
            created = self._try_put(key, data)
            if created is not None:
                return created
            time.sleep(pause_s)
        raise StorageError(
            f"S3 kept answering that '{key}' in bucket '{self.bucket}' is being written by others: try again"
        )

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        check_prefix(prefix)
        return self._walk(prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        keys = iter([self._key(path) for path in paths])
        while batch := [{"Key": key} for key in islice(keys, _DELETE_BATCH)]:
            with s3_errors(self.bucket, batch[0]["Key"]):
                answer = self._client().delete_objects(
                    Bucket=self.bucket, Delete={"Objects": batch, "Quiet": True}
                )
            self._check_deleted(answer.get("Errors", ()))

    def copy_from(self, source: "S3Storage", source_path: str, path: str) -> None:
        """An object of a bucket of the same service, by the service itself; what lies at the path is replaced."""
        key, origin = self._key(path), {"Bucket": source.bucket, "Key": source._key(source_path)}  # noqa: SLF001  # of another store of this kind
        with s3_errors(source.bucket, origin["Key"]):
            self._client().copy(origin, self.bucket, key)  # in parts, where it is large

    def parent(self) -> "S3Storage | None":
        if not self.prefix:
            return None
        above = self.prefix.rstrip("/").rpartition("/")[0]
        uri = self.uri.rpartition("/")[0]
        return replace(self, uri=uri, prefix=f"{above}/" if above else "")

    def now_us(self) -> int | None:
        return told_us(self.options)

    def _client(self) -> Any:
        return s3_client(self.options)

    def _key(self, path: str) -> str:
        return self.prefix + check_path(path)

    def _try_put(self, key: str, data: bytes | memoryview) -> bool | None:
        """None when another request on the key was in flight and neither outcome is decided."""
        body = (
            data if isinstance(data, bytes) else pa.BufferReader(data)
        )  # which boto3 reads bit by bit, without a copy of the whole
        with s3_errors(self.bucket, key):
            try:
                self._client().put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
            except ClientError as error:
                if error_status(error) == 412:
                    return False
                if error_status(error) == 409:
                    return None
                if error_status(error) in _REFUSED and not was_retried(error):
                    refused = translated(error, self.bucket, key)
                    raise NotWrittenError(f"nothing was written: {refused}") from error
                raise
        return True

    def _walk(self, prefix: str, start_after: str) -> Iterator[StoredObject]:
        where = {"StartAfter": self.prefix + start_after} if start_after else {}
        with s3_errors(self.bucket, self.prefix + prefix):
            paginator = self._client().get_paginator("list_objects_v2")
            for page in paginator.paginate(
                Bucket=self.bucket, Prefix=self.prefix + prefix, **where
            ):
                for entry in page.get("Contents", ()):
                    path = entry["Key"][len(self.prefix) :]
                    if is_path(path):  # Hadoop leaves empty objects `folder/` behind
                        yield _stored(path, entry)

    def _check_deleted(self, errors: Sequence[Mapping[str, str]]) -> None:
        if errors:
            first = errors[0]
            raise StorageError(
                f"S3 did not delete {len(errors)} objects of bucket '{self.bucket}', the first '{first.get('Key')}' "
                f"({first.get('Code')}: {first.get('Message')}): try again"
            )


def _range(start: int, length: int | None) -> dict[str, str]:
    if start < 0:
        return {
            "Range": f"bytes={start}"
        }  # the last bytes; what is beyond `length` is cut off here
    if length is None:
        return {"Range": f"bytes={start}-"} if start else {}
    return {"Range": f"bytes={start}-{start + max(1, length) - 1}"}  # a range cannot be empty


def _stored(path: str, entry: Mapping[str, Any]) -> StoredObject:
    modified = entry["LastModified"]
    return StoredObject(
        path=path, size=entry["Size"], modified_us=int(modified.timestamp() * 1_000_000)
    )
