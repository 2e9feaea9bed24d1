"""Where the benchmarks of deletion keep their objects: a folder, or a bucket on a real S3 server (SeaweedFS)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_segments.core.storage import attribute
from airflow_provider_segments.core.storage.s3_owned import DELETE_BATCH
from airflow_provider_segments.dev.s3 import S3Server
from benchmarks.systems import CONTENT

BUCKET = "bench"
_OWNER = "segments-owner"
_WRITERS = 8


def cluster_of(uri: str) -> str:
    """A cluster of each place: a cluster knows its storage, and refuses another one."""
    return f"bench_{zlib.crc32(uri.encode()):08x}"


class Place(Protocol):
    """A place for objects, with the plainest way to delete some."""

    name: str
    uri: str
    allowed: float
    """How many times as long as the raw floor ours may take (issue 3)."""

    def options(self) -> dict[str, str]:
        """What opens it as a store of ours."""

    def fill(self, objects: Iterable[tuple[str, str]]) -> None:
        """Write an object for each key and owner metadata."""

    def remove(self, keys: Sequence[str]) -> None:
        """The raw floor: delete, and look at nothing."""

    def count(self, prefix: str) -> int:
        """How many objects there are."""

    def delta_options(self) -> dict[str, str]:
        """What delta-rs needs to get here."""

    def iceberg_options(self) -> dict[str, str]:
        """What pyiceberg needs to get here."""


class Folder:
    """A folder of this disk. The raw floor is ``unlink`` in a loop and one fsync of the folder."""

    name, allowed = "local", 2.0

    def __init__(self, root: Path) -> None:
        self.root, self.uri = root, root.as_uri()

    def options(self) -> dict[str, str]:
        return {}

    def fill(self, objects: Iterable[tuple[str, str]]) -> None:
        for key, owner in objects:
            path = self.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(CONTENT)
            if owner:
                os.setxattr(path, attribute.NAME, owner.encode())
        os.sync()

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


class Bucket:
    """A bucket. The raw floor is ``delete_objects``, 1,000 keys a request, one request after the other."""

    name, allowed = "s3", 3.0

    def __init__(self, server: S3Server) -> None:
        self.server, self.uri = server, f"s3://{BUCKET}"
        server.create_bucket(BUCKET)
        self.client = server._client()

    def options(self) -> dict[str, str]:
        return self.server.options

    def fill(self, objects: Iterable[tuple[str, str]]) -> None:
        def put(one: tuple[str, str]) -> None:
            metadata = {_OWNER: one[1]} if one[1] else {}
            self.client.put_object(Bucket=BUCKET, Key=one[0], Body=CONTENT, Metadata=metadata)

        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in pool.map(put, objects):
                pass

    def remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), DELETE_BATCH):
            wanted = [{"Key": key} for key in keys[start : start + DELETE_BATCH]]
            reply = self.client.delete_objects(Bucket=BUCKET, Delete={"Objects": wanted, "Quiet": True})
            assert not reply.get("Errors")

    def count(self, prefix: str) -> int:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = (one["Key"] for page in pages for one in page.get("Contents", ()))
        return sum(not key.endswith("/") for key in keys)  # Arrow leaves markers of folders

    def delta_options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.server.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.server.access_key,
            "AWS_SECRET_ACCESS_KEY": self.server.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_CONDITIONAL_PUT": "etag",
        }

    def iceberg_options(self) -> dict[str, Any]:
        return {
            "s3.endpoint": self.server.endpoint_url,
            "s3.access-key-id": self.server.access_key,
            "s3.secret-access-key": self.server.secret_key,
            "s3.region": "us-east-1",
        }


@contextmanager
def place(name: str, folder: Path) -> Iterator[Place]:
    """The place called ``local`` or ``s3``, with its data below ``folder``."""
    if name == "local":
        (folder / "objects").mkdir()
        yield Folder(folder / "objects")
    elif name == "s3":
        with S3Server(folder / "s3") as server:
            yield Bucket(server)
    else:
        raise SystemExit(f"store {name!r} is unknown: use local, s3")
