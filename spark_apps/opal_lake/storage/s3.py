"""A store in an S3 bucket.

Objects are created by a conditional PUT: the service must honour `If-None-Match: *`.
"""

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
    store_now_us,
    translated,
    was_retried,
)
from opal_lake.storage.uris import bucket_and_prefix

_DELETE_BATCH = 1000
_REFUSED = (403, 404)  # no right to write, no such bucket
_EXISTS = 412
_IN_FLIGHT = 409  # another request on the key is not decided
_CONFLICT_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Storage:
    """The objects of a bucket whose keys start with `prefix`.

    It holds no client, so that it can be pickled and sent to other machines.
    """

    uri: str
    bucket: str
    prefix: str
    options: S3Options = field(default=(), repr=False)

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str] | None = None) -> "S3Storage":
        bucket, prefix = bucket_and_prefix(uri)
        if bucket.endswith("--x-s3"):
            raise InvalidInputError(
                f"bucket '{bucket}' is a directory bucket, which does not list in order: "
                "use a general purpose bucket"
            )
        checked = check_options(options or {})
        return cls(uri=uri.rstrip("/"), bucket=bucket, prefix=prefix, options=checked)

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        check_length(length)
        key = self._key(path)
        with s3_errors(self.bucket, key):
            try:
                response = self._client().get_object(
                    Bucket=self.bucket, Key=key, **_range(start, length)
                )
            except ClientError as error:
                # The range begins after the end of the object.
                if error_code(error) == "InvalidRange":
                    return b""
                raise
            body = response["Body"]
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
            f"S3 answered {len(_CONFLICT_PAUSES_S)} times that others are writing '{key}' "
            f"in bucket '{self.bucket}': try again"
        )

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        check_prefix(prefix)
        return self._walk(prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        keys = iter([self._key(path) for path in paths])
        while batch := [{"Key": key} for key in islice(keys, _DELETE_BATCH)]:
            with s3_errors(self.bucket, batch[0]["Key"]):
                response = self._client().delete_objects(
                    Bucket=self.bucket, Delete={"Objects": batch, "Quiet": True}
                )
            self._check_deleted(response.get("Errors", ()))

    def copy_from(self, source: "S3Storage", source_path: str, path: str) -> None:
        """Copy an object within the service, and replace an existing one at the path."""
        key = self._key(path)
        source_key = source._key(source_path)  # noqa: SLF001  # of another store of this class
        with s3_errors(source.bucket, source_key):
            # boto3 copies a large object in parts.
            self._client().copy({"Bucket": source.bucket, "Key": source_key}, self.bucket, key)

    def parent(self) -> "S3Storage | None":
        if not self.prefix:
            return None
        uri, _, _ = self.uri.rpartition("/")
        folder, slash, _ = self.prefix.rstrip("/").rpartition("/")
        return replace(self, uri=uri, prefix=folder + slash)

    def now_us(self) -> int | None:
        return store_now_us(self.options)

    def _client(self) -> Any:
        return s3_client(self.options)

    def _key(self, path: str) -> str:
        return self.prefix + check_path(path)

    def _try_put(self, key: str, data: bytes | memoryview) -> bool | None:
        """Put an object; return None if another request on the key was not decided yet."""
        # boto3 reads a file piece by piece, without a copy of all of it.
        body = data if isinstance(data, bytes) else pa.BufferReader(data)
        with s3_errors(self.bucket, key):
            try:
                self._client().put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
            except ClientError as error:
                status = error_status(error)
                if status == _EXISTS:
                    return False
                if status == _IN_FLIGHT:
                    return None
                # An earlier try of the client may have written, if it was not refused as well.
                if status in _REFUSED and not was_retried(error):
                    refusal = translated(error, self.bucket, key)
                    raise NotWrittenError(f"nothing was written: {refusal}") from error
                raise
        return True

    def _walk(self, prefix: str, start_after: str) -> Iterator[StoredObject]:
        request = {"Bucket": self.bucket, "Prefix": self.prefix + prefix}
        if start_after:
            request["StartAfter"] = self.prefix + start_after
        with s3_errors(self.bucket, self.prefix + prefix):
            paginator = self._client().get_paginator("list_objects_v2")
            for page in paginator.paginate(**request):
                for entry in page.get("Contents", ()):
                    path = entry["Key"][len(self.prefix) :]
                    # Hadoop leaves empty objects `folder/` behind, which no path names.
                    if is_path(path):
                        yield _stored(path, entry)

    def _check_deleted(self, errors: Sequence[Mapping[str, str]]) -> None:
        if errors:
            first = errors[0]
            raise StorageError(
                f"S3 did not delete {len(errors)} objects of bucket '{self.bucket}', "
                f"the first '{first.get('Key')}' ({first.get('Code')}: {first.get('Message')}): "
                "try again"
            )


def _range(start: int, length: int | None) -> dict[str, str]:
    if start < 0:
        # The last bytes, all of them: `get` cuts off those after `length`.
        return {"Range": f"bytes={start}"}
    if length is not None:
        last = start + max(1, length) - 1  # S3 has no empty range
        return {"Range": f"bytes={start}-{last}"}
    if start:
        return {"Range": f"bytes={start}-"}
    return {}


def _stored(path: str, entry: Mapping[str, Any]) -> StoredObject:
    modified_us = int(entry["LastModified"].timestamp() * 1_000_000)
    return StoredObject(path=path, size=entry["Size"], modified_us=modified_us)
