"""Where the benchmarks keep their objects: a folder, or a bucket on a real S3 server (SeaweedFS)."""

from __future__ import annotations

import functools
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_segments.core.storage import attribute
from airflow_provider_segments.core.storage.s3_owned import DELETE_BATCH
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.dev.zookeeper import free_port

BUCKET = "bench"
ROWS = 100
_OWNER = "segments-owner"
_WRITERS = 8


def small_file() -> bytes:
    """A Parquet file of ``ROWS`` rows."""
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array(range(ROWS), pa.int64())}), buffer)
    return bytes(buffer.getvalue())


CONTENT = small_file()


def cluster_of(uri: str) -> str:
    """A cluster of each place: a cluster knows its storage, and refuses another one."""
    return f"bench_{zlib.crc32(uri.encode()):08x}"


class Place(Protocol):
    """A place for objects, with the plainest way to write and to delete some. It can be sent to another process."""

    @property
    def name(self) -> str:
        """``local`` or ``s3``."""

    @property
    def uri(self) -> str:
        """Its address, without a slash at its end."""

    @property
    def metrics(self) -> str:
        """Where its server counts what it was asked; nothing for a folder."""

    def options(self) -> dict[str, str]:
        """What opens it as a store of ours."""

    def at(self, name: str) -> Place:
        """The place ``name`` below this one."""

    def fill(self, objects: Iterable[tuple[str, str]]) -> None:
        """Write a small object for each key and owner metadata."""

    def put(self, files: Iterable[tuple[Path, str]]) -> None:
        """Copy each file to its key."""

    def paths(self, keys: Sequence[str], folder: Path) -> list[Path]:
        """The objects as files: where they are, or copies in ``folder``."""

    def remove(self, keys: Sequence[str]) -> None:
        """The raw floor: delete, and look at nothing."""

    def count(self, prefix: str) -> int:
        """How many objects there are."""

    def delta_options(self) -> dict[str, str]:
        """What delta-rs needs to get here."""

    def iceberg_options(self) -> dict[str, str]:
        """What pyiceberg needs to get here."""


def key_of(where: Place, uri: str) -> str:
    """The key of a file that another system has named."""
    return unquote((uri if "://" in uri else f"file://{uri}").removeprefix(f"{where.uri}/"))


@dataclass(frozen=True)
class Folder:
    """A folder of this disk. The raw floor is ``unlink`` in a loop and one fsync of the folder."""

    root: Path
    name: str = "local"
    metrics: str = ""

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def options(self) -> dict[str, str]:
        return {}

    def at(self, name: str) -> Folder:
        (self.root / name).mkdir(exist_ok=True)
        return Folder(self.root / name)

    def fill(self, objects: Iterable[tuple[str, str]]) -> None:
        for key, owner in objects:
            path = self.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(CONTENT)
            if owner:
                os.setxattr(path, attribute.NAME, owner.encode())

    def put(self, files: Iterable[tuple[Path, str]]) -> None:
        for path, key in files:
            (self.root / key).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.root / key)

    def paths(self, keys: Sequence[str], folder: Path) -> list[Path]:
        return [self.root / key for key in keys]

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            os.unlink(f"{self.root}/{key}")
        folder = os.open((self.root / keys[0]).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def count(self, prefix: str) -> int:
        return sum(len(files) for _, _, files in os.walk(self.root / prefix))

    def delta_options(self) -> dict[str, str]:
        return {}

    def iceberg_options(self) -> dict[str, str]:
        return {}


@dataclass(frozen=True)
class Bucket:
    """A bucket, or what is below ``prefix`` in it. The raw floor is ``delete_objects``, 1,000 keys a request, one after
    the other."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    metrics: str
    prefix: str = ""
    name: str = "s3"

    @property
    def uri(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}".rstrip("/")

    def options(self) -> dict[str, str]:
        return {"endpoint_url": self.endpoint, "access_key": self.access_key, "secret_key": self.secret_key}

    def at(self, name: str) -> Bucket:
        return Bucket(self.endpoint, self.access_key, self.secret_key, self.metrics, f"{self.prefix}{name}/")

    def fill(self, objects: Iterable[tuple[str, str]]) -> None:
        def put(one: tuple[str, str]) -> None:
            metadata = {_OWNER: one[1]} if one[1] else {}
            self._client().put_object(Bucket=BUCKET, Key=self.prefix + one[0], Body=CONTENT, Metadata=metadata)

        _side_by_side(put, objects)

    def put(self, files: Iterable[tuple[Path, str]]) -> None:
        _side_by_side(lambda one: self._client().upload_file(str(one[0]), BUCKET, self.prefix + one[1]), files)

    def paths(self, keys: Sequence[str], folder: Path) -> list[Path]:
        found = {key: folder / f"{number}.parquet" for number, key in enumerate(keys)}
        _side_by_side(
            lambda one: self._client().download_file(BUCKET, self.prefix + one[0], str(one[1])), found.items()
        )
        return list(found.values())

    def remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), DELETE_BATCH):
            wanted = [{"Key": self.prefix + key} for key in keys[start : start + DELETE_BATCH]]
            reply = self._client().delete_objects(Bucket=BUCKET, Delete={"Objects": wanted, "Quiet": True})
            assert not reply.get("Errors")

    def count(self, prefix: str) -> int:
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix + prefix)
        keys = (one["Key"] for page in pages for one in page.get("Contents", ()))
        return sum(not key.endswith("/") for key in keys)  # Arrow leaves markers of folders

    def empty(self, prefix: str) -> None:
        """Remove everything below ``prefix``."""
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix + prefix)
        for page in pages:
            self.remove([one["Key"].removeprefix(self.prefix) for one in page.get("Contents", ())])

    def delta_options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_CONDITIONAL_PUT": "etag",
        }

    def iceberg_options(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.region": "us-east-1",
        }

    def _client(self) -> Any:
        return _s3_client(self.endpoint, self.access_key, self.secret_key)


@contextmanager
def place(name: str, folder: Path) -> Iterator[Place]:
    """The place called ``local`` or ``s3``, with its data below ``folder``."""
    if name == "local":
        (folder / "objects").mkdir()
        yield Folder(folder / "objects")
    elif name == "s3":
        counts = free_port()
        with S3Server(folder / "s3", flags={"metricsPort": str(counts)}) as server:
            server.create_bucket(BUCKET)
            metrics = f"http://127.0.0.1:{counts}/metrics"
            yield Bucket(server.endpoint_url, server.access_key, server.secret_key, metrics)
    else:
        raise SystemExit(f"store {name!r} is unknown: use local, s3")


@functools.cache
def _s3_client(endpoint: str, access_key: str, secret_key: str) -> Any:
    """One a process: boto3 takes longer to make a client than to delete a thousand objects."""
    import boto3

    keys = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
    return boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)


def _side_by_side(work: Any, items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(work, items):
            pass
