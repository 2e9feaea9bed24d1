"""Objects in an S3 bucket, through boto3.

What S3 can and cannot know: a delete of a key that is not there answers like any other, so ``delete_owned`` looks first
as deleted; use ``head`` or ``list`` where the difference matters, or ``delete_owned``, which looks first. S3 tells a
missing object from a refused one only to those who may list the bucket (``s3:ListBucket``); without that right a
missing object is a failure (403) and never missing.

Versioned buckets: a delete leaves a delete marker. Readers and ``head`` see the object gone, a second ``delete_owned``
says missing, and no further marker is made. Its bytes stay, as a noncurrent version, until the bucket's life-cycle rule
(``NoncurrentVersionExpiration``) removes them: nothing here ever deletes a version, so what was deleted can be brought
back by removing its marker. Only where versioning is suspended does a delete free bytes: those of an object that was
written without a version.
"""

from __future__ import annotations

import io
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from airflow_provider_segments.core.storage.base import (
    ListedObject,
    ObjectInfo,
    OwnedOutcome,
    check_key,
    check_keys,
    check_prefix,
    decode_owner,
    encode_owner,
    random_id,
)
from airflow_provider_segments.core.storage.s3_heads import Heads, Signer
from airflow_provider_segments.core.storage.s3_owned import OwnedDeletion
from airflow_provider_segments.exceptions import (
    InvalidConfigError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageUnavailableError,
)

MULTIPART_BYTES = 64 * 1024 * 1024
"""Larger files are uploaded in parts of this size."""
CONNECTIONS = 32
"""Most connections of boto3's pool."""

_OWNER = "segments-owner"
_WRITE_ID = "segments-write-id"
_READ_AHEAD = 1024 * 1024
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_TRIES = 5
_MISSING = {"404", "NoSuchKey", "NotFound", "NoSuchUpload"}
_TAKEN = {"412", "PreconditionFailed"}
_CONFLICT = {"409", "ConditionalRequestConflict", "OperationAborted"}
_DENIED = {
    "401", "403", "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch", "Unauthorized",
}  # fmt: skip


class _ConflictError(StorageUnavailableError):
    """Another request is at work on the same key. It says nothing about how that one will end."""


class S3Store:
    """Objects below ``prefix`` of ``bucket``. Without keys, boto3's standard chain finds the credentials.

    Instances may be shared by threads and pickled for Spark executors; the client is made anew after that. Secrets are
    kept out of ``repr`` and of messages. A server that does not answer within ``reply_seconds`` is asked again, up to
    five times in all. Raises :class:`InvalidConfigError` for half a pair of keys, and for a bucket
    or an endpoint that cannot be one.
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
        reply_seconds: float = 60.0,
        new_id: Callable[[], str] = random_id,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        if bool(access_key) != bool(secret_key):
            raise InvalidConfigError("S3 access key and secret key must be given together")
        if _BUCKET.fullmatch(bucket) is None:
            raise InvalidConfigError(f"{bucket!r} cannot be the name of a bucket: use 3 to 63 letters, digits, - . _")
        if endpoint_url:
            _check_endpoint(endpoint_url)
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
        self._reply_seconds = reply_seconds
        self._new_id = new_id
        self._sleep = sleep
        self._now = now
        self._lock = threading.Lock()
        self._made: Any = None
        self._session: Any = None

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_made", "_session")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._made = self._session = None

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def url(self, key: str) -> str:
        """``s3://bucket/prefix/key``."""
        return f"s3://{self.bucket}/{self._full(key)}"

    def put_file(
        self,
        path: Path,
        key: str,
        *,
        owner: Mapping[str, str],
        consume: bool = False,  # noqa: ARG002 - an upload copies in any case
    ) -> ObjectInfo:
        """Upload, in parts when it is large; parts of an upload that failed are removed.

        A put whose reply was lost is retried by boto3 and then finds the key taken, or its upload gone: the write id
        tells whether by us.
        """
        write_id = self._new_id()
        metadata = {_OWNER: encode_owner(owner), _WRITE_ID: write_id}
        condition = {"IfNoneMatch": "*"}
        size = path.stat().st_size
        upload = self._put_whole if size <= MULTIPART_BYTES else self._put_parts
        try:
            with path.open("rb") as body:
                where = {"Bucket": self.bucket, "Key": self._full(key)}
                self._past_conflicts(lambda: self._upload(upload, key, body, where, metadata, condition))
        except (ObjectExistsError, ObjectNotFoundError):
            if not self._is_ours(key, size, write_id):
                raise
        return ObjectInfo(key, size, dict(owner))

    def head(self, key: str) -> ObjectInfo | None:
        """One HEAD request, and one GET when the answer is "not found"."""
        try:
            reply = self._head(key)
        except ObjectNotFoundError:
            return None
        text = reply["Metadata"].get(_OWNER, "{}")
        return ObjectInfo(key, reply["ContentLength"], decode_owner(text, self.url(key)))

    def open(self, key: str) -> BinaryIO:
        """A file that reads ranges of the object as they are asked for, a mebibyte at a time."""
        reply = self._head(key)
        raw = _RangeReader(self, key, reply["ContentLength"], reply["ETag"])
        return cast("BinaryIO", io.BufferedReader(raw, _READ_AHEAD))

    def delete_owned(self, owners: Mapping[str, str]) -> OwnedOutcome:
        """HEAD requests, and beside them deletes of 1,000 keys each.

        What a quick look (see ``s3_heads``) finds as expected is deleted; everything else is looked at once more, by
        boto3, before anything is said of it.
        """
        check_keys(list(owners))
        return OwnedDeletion(self._confirmed, self.head, self._delete, CONNECTIONS).run(owners)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Pages of 1,000. Folder markers, which some tools leave, are no objects."""
        skip = len(self._full("x")) - 1
        for page in self._pages("list_objects_v2", prefix):
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):
                    modified_ms = int(found["LastModified"].timestamp() * 1000)
                    yield ListedObject(found["Key"][skip:], found["Size"], modified_ms)

    def discard_unfinished(self, prefix: str) -> int:
        """Abort uploads in parts that were never completed."""
        found = [upload for page in self._pages("list_multipart_uploads", prefix) for upload in page.get("Uploads", ())]
        for upload in found:
            with self._errors(prefix), suppress(self._client().exceptions.NoSuchUpload):
                self._client().abort_multipart_upload(
                    Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
        return len(found)

    def read_range(self, key: str, start: int, length: int, etag: str) -> bytes:
        """Bytes ``[start, start + length)`` of the object as ``etag`` names it: never a mix of two objects.

        boto3 retries a request, but not a body that breaks off: that is done here.
        """
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        request = {"Bucket": self.bucket, "Key": self._full(key), "IfMatch": etag}
        with self._errors(key):
            for attempt in range(1, _TRIES + 1):
                reply = self._client().get_object(**request, Range=f"bytes={start}-{start + length - 1}")
                try:
                    return bytes(reply["Body"].read())
                except (HTTPClientError, IncompleteReadError):
                    if attempt == _TRIES:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _pages(self, operation: str, prefix: str) -> Iterator[Any]:
        wanted = {"Bucket": self.bucket, "Prefix": self._full(check_prefix(prefix)[:-1]) + "/"}
        with self._errors(prefix):
            pages = iter(self._client().get_paginator(operation).paginate(**wanted))
        while True:
            with self._errors(prefix):
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _past_conflicts(self, upload: Callable[[], None]) -> None:
        """A conflict is nobody's success: S3 asks to send the whole put again, and then answers for good."""
        for attempt in range(1, _TRIES + 1):
            try:
                upload()
            except _ConflictError:
                if attempt == _TRIES:
                    raise
                self._sleep(0.1 * 2**attempt)
            else:
                return

    def _upload(
        self,
        upload: Callable[[BinaryIO, Mapping[str, str], Mapping[str, str], Mapping[str, str]], None],
        key: str,
        body: BinaryIO,
        where: Mapping[str, str],
        metadata: Mapping[str, str],
        condition: Mapping[str, str],
    ) -> None:
        body.seek(0)
        with self._errors(key):
            upload(body, where, metadata, condition)

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
        """The reply to a HEAD. That of "not found" has no body, so that a missing object looks like a missing bucket
        there: GET tells them apart."""
        from botocore.exceptions import ClientError

        where = {"Bucket": self.bucket, "Key": self._full(key)}
        with self._errors(key):
            try:
                return self._client().head_object(**where)
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != 404:
                    raise
            reply = self._client().get_object(**where)
            reply["Body"].close()
            return reply

    def _confirmed(self, owners: Mapping[str, str]) -> Iterator[str]:
        """Keys of ``owners`` whose objects have exactly the expected metadata; not all of them, if need be none."""
        heads = self._heads()
        if heads is None:
            return
        skip = len(self._full("x")) - 1
        for full in heads.confirmed({self._full(key): owner for key, owner in owners.items()}):
            yield full[skip:]

    def _heads(self) -> Heads | None:
        """Quick looks at this bucket, at the address and with the credentials that boto3 uses; none where that is
        more than an address: through a proxy, or unsigned."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.httpsession import get_cert_path
        from botocore.utils import get_environ_proxies

        try:
            client = self._client()
            where = {"Bucket": self.bucket, "Key": "x"}
            base = client.generate_presigned_url("head_object", Params=where).partition("?")[0].removesuffix("x")
            credentials = self._credentials()
        except (BotoCoreError, ClientError):
            return None  # whoever asks boto3 next hears why
        if credentials is None or get_environ_proxies(base):
            return None
        tls = None
        if base.startswith("https:"):
            ca_bundle = self._session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
            tls = ssl.create_default_context(cafile=ca_bundle or get_cert_path(True))
        region = client.meta.region_name
        signer = Signer(*credentials, "us-east-1" if region in (None, "aws-global") else region)
        return Heads(base, signer, f"x-amz-meta-{_OWNER}", tls, self._now, self._reply_seconds)

    def _credentials(self) -> tuple[str, str, str | None] | None:
        given = self._options
        if given["aws_access_key_id"]:
            return given["aws_access_key_id"], given["aws_secret_access_key"], given["aws_session_token"]
        found = self._session.get_credentials()
        if found is None:
            return None
        frozen = found.get_frozen_credentials()
        return frozen.access_key, frozen.secret_key, frozen.token

    def _is_ours(self, key: str, size: int, write_id: str) -> bool:
        try:
            reply = self._head(key)
        except ObjectNotFoundError:
            return False
        return bool(reply["ContentLength"] == size and reply["Metadata"].get(_WRITE_ID) == write_id)

    def _delete(self, batch: Iterable[str]) -> dict[str, str | None]:
        """What is not deleted of ``batch``: the reason by key, ``None`` where the store says it is missing."""
        by_full = {self._full(key): key for key in batch}
        request = {"Objects": [{"Key": full} for full in by_full], "Quiet": True}
        try:
            with self._errors(f"{len(by_full)} keys"):
                reply = self._client().delete_objects(Bucket=self.bucket, Delete=request)
        except StorageError as error:
            return dict.fromkeys(by_full.values(), str(error))
        outcome: dict[str, str | None] = {}
        for refused in reply.get("Errors", ()):
            code, message = refused.get("Code"), refused.get("Message")
            key = by_full.get(refused.get("Key", ""))
            if key is None:
                # An error about a key that nobody gave: no key of the batch may be taken for deleted.
                return dict.fromkeys(by_full.values(), f"the store answered {code}: {message} for a key not asked for")
            outcome[key] = None if code in _MISSING else f"{code}: {message}"
        return outcome

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make_client()
            return self._made

    def _make_client(self) -> Any:
        import boto3
        import botocore.session
        from botocore.config import Config

        config = Config(
            connect_timeout=10,
            read_timeout=self._reply_seconds,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": 5},
            s3={"addressing_style": "path"} if self._options["endpoint_url"] else {},
        )
        self._session = botocore.session.Session()
        return boto3.session.Session(botocore_session=self._session).client("s3", config=config, **self._options)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """boto3's errors as ours. Only a positive answer of the store means that something is not there."""
        from botocore import exceptions as boto

        where = f"s3://{self.bucket}/{self.prefix}/{key}" if self.prefix else f"s3://{self.bucket}/{key}"
        try:
            yield
        except boto.ClientError as error:
            raise _translated(where, error) from error
        except (
            boto.NoCredentialsError,
            boto.PartialCredentialsError,
            boto.CredentialRetrievalError,
            boto.TokenRetrievalError,
            boto.NoAuthTokenError,
            boto.SSOError,
            boto.ProfileNotFound,
        ) as error:
            message = f"{where}: no S3 credentials were found; set them in the connection ({error})"
            raise StorageAccessError(message) from error
        except (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError) as error:
            raise StorageUnavailableError(f"{where}: {type(error).__name__}: {error}") from error
        except boto.BotoCoreError as error:
            raise StorageError(f"{where}: {type(error).__name__}: {error}") from error


class _RangeReader(io.RawIOBase):
    """A seekable raw file over ranged GETs."""

    def __init__(self, store: S3Store, key: str, size: int, etag: str) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._etag = etag
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
        data = self._store.read_range(self._key, self._at, length, self._etag)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfigError(f"S3 endpoint {url[:80]!r} is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InvalidConfigError(
            f"S3 endpoint {url.rpartition('@')[2]!r} must be http:// or https:// and a host, without credentials"
        )


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
    if code in _CONFLICT or status == 409:
        return _ConflictError(f"{message}; another request is at work on this key, run it again")
    if code in _DENIED or status in (401, 403):
        return StorageAccessError(f"{message}; check the S3 credentials and policy")
    if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout", "ThrottlingException"):
        return StorageUnavailableError(message)
    return StorageError(message)
