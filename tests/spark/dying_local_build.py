"""A build without Spark that ends, as ``kill -9`` would end it, at its ``at``-th write to ZooKeeper or to the store.

``python -m tests.spark.dying_local_build HOSTS CLUSTER STORAGE TABLE ENTRY SOURCE WHERE AT LANDED``
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_segments.arrow.inputs import Source
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.base import ObjectInfo
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.local.build import build_segments
from tests.support.sessions import DyingSession, settings, store_on


class DyingStore(LocalStore):
    """Ends the process right before or right after the ``at``-th upload."""

    def __init__(self, root: str, at: int, landed: bool) -> None:
        super().__init__(Path(root))
        self.left = at
        self.landed = landed
        self.counting = threading.Lock()

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], **how: bool) -> ObjectInfo:
        with self.counting:  # files are uploaded by several threads
            self.left -= 1
            if self.left == 0 and not self.landed:
                os._exit(9)
            done = super().put_file(path, key, owner=owner, **how)
            if self.left == 0:
                os._exit(9)
            return done


def main(
    hosts: str, cluster: str, storage: str, table: str, entry: str, source: str, where: str, at: str, landed: str
) -> None:
    """Build the rows of a CSV file."""
    objects = open_store(storage)
    if where == "store":
        objects = DyingStore(storage.removeprefix("file://"), int(at), landed == "True")
    with DyingSession.connect(settings(hosts)) as session:
        session.at, session.landed = int(at) if where == "zookeeper" else 0, landed == "True"
        store = store_on(session, cluster, objects)
        options = {"header": "true", "inferSchema": "true"}
        build_segments(store.table(table), entry, Source(source, "csv", options))


if __name__ == "__main__":
    main(*sys.argv[1:])
