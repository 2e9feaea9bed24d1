"""Objects in an S3 bucket, through boto3.

What S3 can and cannot know: a delete of a key that is not there answers like any other, so ``delete_many`` reports it
as deleted; use ``head`` or ``list`` where the difference matters. On a versioned bucket a delete leaves a delete
marker: readers see the object gone, and its bytes stay until the bucket's life-cycle rule removes noncurrent
versions."""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from airflow_provider_segments.exceptions import (
    InvalidConfigError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageUnavailableError,
)
from airflow_provider_segments.storage.base import DeleteOutcome, ListedObject, ObjectInfo, check_key, check_prefix

MULTIPART_BYTES = 64 * 1024 * 1024
"""Larger files are uploaded in parts of this size."""
DELETE_BATCH = 1000
"""Keys one delete request may name."""

_OWNER = "segments-owner"
_WRITE_ID = "segments-write-id"
_READ_AHEAD = 1024 * 1024
_MISSING = {"404", "NoSuchKey", "NotFound"}
_TAKEN = {"412", "PreconditionFailed", "409", "ConditionalRequestConflict"}
_DENIED = {
    "401", "403", "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch", "Unauthorized",
}  # fmt: skip


class S3Store:
    """Objects below ``prefix`` of ``bucket``. Without keys, boto3's standard chain finds the credentials.

    Instances may be shared by threads and pickled for Spark executors; the client is made anew after that. Secrets are
    kept out of ``repr`` and of messages. Raises :class:`InvalidConfigError` for half a pair of keys.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        region: str | None = None,
    ) -> None:
        if bool(access_key) != bool(secret_key):
            raise InvalidConfigError("S3 access key and secret key must be given together")
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        if self.prefix:
            check_key(self.prefix)
        self._options: dict[str, Any] = {
            "endpoint_url": endpoint_url or None,
            "aws_access_key_id": access_key or None,
            "aws_secret_access_key": secret_key or None,
            "aws_session_token": session_token or None,
            "region_name": region or None,
        }
        self._lock = threading.Lock()
        self._made: Any = None

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "prefix": self.prefix, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._made = None

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def url(self, key: str) -> str:
        """``s3://bucket/prefix/key``."""
        return f"s3://{self.bucket}/{self._full(key)}"

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], overwrite: bool = False) -> ObjectInfo:
        """Upload, in parts when it is large; parts of an upload that failed are removed.

        A put whose reply was lost is retried by boto3 and then finds the key taken: the write id tells whether by us.
        """
        write_id = uuid.uuid4().hex
        metadata = {_OWNER: json.dumps(dict(owner)), _WRITE_ID: write_id}
        condition = {} if overwrite else {"IfNoneMatch": "*"}
        size = path.stat().st_size
        try:
            with self._errors(key), path.open("rb") as body:
                upload = self._put_whole if size <= MULTIPART_BYTES else self._put_parts
                upload(body, {"Bucket": self.bucket, "Key": self._full(key)}, metadata, condition)
        except ObjectExistsError:
            if not self._is_ours(key, write_id):
                raise
        return ObjectInfo(key, size, dict(owner))

    def head(self, key: str) -> ObjectInfo | None:
        """One HEAD request."""
        try:
            reply = self._head(key)
        except ObjectNotFoundError:
            return None
        owner = reply["Metadata"].get(_OWNER)
        return ObjectInfo(key, reply["ContentLength"], json.loads(owner) if owner else {})

    def open(self, key: str) -> BinaryIO:
        """A file that reads ranges of the object as they are asked for, a mebibyte at a time."""
        reply = self._head(key)
        return cast("BinaryIO", io.BufferedReader(_RangeReader(self, key, reply["ContentLength"]), _READ_AHEAD))

    def delete_many(self, keys: Iterable[str]) -> DeleteOutcome:
        """Requests of 1,000 keys. A request that fails as a whole fails its keys, and the next one is sent all the
        same."""
        deleted: list[str] = []
        failed: dict[str, str] = {}
        rest = iter(keys)
        while batch := list(islice(rest, DELETE_BATCH)):
            errors = self._delete(batch)
            failed |= errors
            deleted += [key for key in batch if key not in errors]
        return DeleteOutcome(tuple(deleted), (), failed)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Pages of 1,000."""
        root = f"{self.prefix}/" if self.prefix else ""
        wanted = {"Bucket": self.bucket, "Prefix": root + check_prefix(prefix)}
        pages = iter(self._client().get_paginator("list_objects_v2").paginate(**wanted))
        while True:
            with self._errors(prefix):
                page = next(pages, None)
            if page is None:
                return
            for found in page.get("Contents", ()):
                yield ListedObject(found["Key"][len(root) :], found["Size"])

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes ``[start, start + length)`` of the object."""
        with self._errors(key):
            span = f"bytes={start}-{start + length - 1}"
            reply = self._client().get_object(Bucket=self.bucket, Key=self._full(key), Range=span)
            return bytes(reply["Body"].read())

    def _put_whole(
        self, body: BinaryIO, where: Mapping[str, str], metadata: Mapping[str, str], condition: Mapping[str, str]
    ) -> None:
        self._client().put_object(**where, Body=body, Metadata=metadata, **condition)

    def _put_parts(
        self, body: BinaryIO, where: Mapping[str, str], metadata: Mapping[str, str], condition: Mapping[str, str]
    ) -> None:
        """The condition holds where the object appears: at the completion, not when the upload begins."""
        client = self._client()
        upload = {**where, "UploadId": client.create_multipart_upload(**where, Metadata=metadata)["UploadId"]}
        try:
            parts: list[dict[str, Any]] = []
            while data := body.read(MULTIPART_BYTES):
                number = len(parts) + 1
                parts.append(
                    {"PartNumber": number, "ETag": client.upload_part(**upload, PartNumber=number, Body=data)["ETag"]}
                )
            client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **condition)
        except BaseException:
            with suppress(Exception):  # the first error is the one to report; a life-cycle rule gets what is left
                client.abort_multipart_upload(**upload)
            raise

    def _full(self, key: str) -> str:
        return f"{self.prefix}/{check_key(key)}" if self.prefix else check_key(key)

    def _head(self, key: str) -> Any:
        with self._errors(key):
            return self._client().head_object(Bucket=self.bucket, Key=self._full(key))

    def _is_ours(self, key: str, write_id: str) -> bool:
        try:
            return bool(self._head(key)["Metadata"].get(_WRITE_ID) == write_id)
        except ObjectNotFoundError:
            return False

    def _delete(self, batch: Iterable[str]) -> dict[str, str]:
        by_full = {self._full(key): key for key in batch}
        request = {"Objects": [{"Key": full} for full in by_full], "Quiet": True}
        try:
            with self._errors(f"{len(by_full)} keys"):
                reply = self._client().delete_objects(Bucket=self.bucket, Delete=request)
        except StorageError as error:
            return dict.fromkeys(by_full.values(), str(error))
        errors = {by_full[error["Key"]]: error for error in reply.get("Errors", ())}
        return {key: f"{error.get('Code')}: {error.get('Message')}" for key, error in errors.items()}

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make_client()
            return self._made

    def _make_client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=32,
            retries={"mode": "standard", "total_max_attempts": 5},
            s3={"addressing_style": "path"} if self._options["endpoint_url"] else {},
        )
        return boto3.session.Session().client("s3", config=config, **self._options)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """boto3's errors as ours. Only a positive answer of the store means that something is not there."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        where = f"s3://{self.bucket}/{self.prefix}/{key}" if self.prefix else f"s3://{self.bucket}/{key}"
        try:
            yield
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StorageAccessError(f"{where}: no S3 credentials were found; set them in the connection") from error
        except ClientError as error:
            raise _translated(where, error) from error
        except BotoCoreError as error:
            raise StorageUnavailableError(f"{where}: {type(error).__name__}: {error}") from error


class _RangeReader(io.RawIOBase):
    """A seekable raw file over ranged GETs."""

    def __init__(self, store: S3Store, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        data = self._store.read_range(self._key, self._at, length)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _translated(where: str, error: Any) -> StorageError:
    reply = error.response.get("Error", {})
    code = str(reply.get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = f"{where}: {code} {reply.get('Message', '')}".rstrip()
    if code == "NoSuchBucket":
        return StorageError(f"{message}; create the bucket first")
    if code in _MISSING:
        return ObjectNotFoundError(message)
    if code in _TAKEN:
        return ObjectExistsError(f"{message}; the key is written once and is taken")
    if code in _DENIED or status in (401, 403):
        return StorageAccessError(f"{message}; check the S3 credentials and policy")
    if status >= 500 or code in ("SlowDown", "RequestTimeout", "ThrottlingException"):
        return StorageUnavailableError(message)
    return StorageError(message)
