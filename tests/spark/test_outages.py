"""Driver, executor, worker, ZooKeeper and S3 are killed in turn while a Spark cluster ingests and processes read."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from airflow_provider_segments.core.model.variables import STORAGE_VARIABLES
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.spark.environment import spark_app_path, spark_environment, spark_submit_path
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from tests.support.children import exit_codes, spawn
from tests.support.owned import settle
from tests.support.spark_cluster import SparkCluster
from tests.upsert.test_outages import ACCOUNTS, Site, transfers, wait_for
from tests.upsert.test_together import balances
from tests.upsert.world import to_arrow, upsert_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SCHEMA = "k STRING, ts BIGINT, v STRING, deleted BOOLEAN, `$partition` INT, `$offset` BIGINT"
KINDS = ("executor", "driver", "ZooKeeper", "worker", "S3")
STRIKES = 2 * len(KINDS)


class SparkSite(Site):
    """Ingestion is the application under ``spark-submit``; it is started again as often as it fails, as by a retry."""

    def __init__(self, folder: Path, cluster: SparkCluster) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.starts = 0
        self._job: subprocess.Popen[bytes] | None = None

    def write_events(self) -> int:
        """A file for every four transfers; returns how many events there are."""
        events, _ = transfers()
        source = self.folder / "events"
        source.mkdir()
        begins = [0, *range(ACCOUNTS, len(events), 8)]
        for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(events)], strict=True)):
            path = source / f"{number:05d}.parquet"
            pyarrow.parquet.write_table(to_arrow(events[begin:end]), path)
            os.utime(path, (number, number))  # Spark reads the oldest files first
        return len(events)

    def ingest_all(self) -> None:
        """Until a run has ended well."""
        while True:
            self.starts += 1
            self._job = self._start()
            if self._job.wait() == 0:
                return

    def kill_driver(self) -> None:
        assert self._job is not None
        os.killpg(self._job.pid, signal.SIGKILL)

    def compact(self) -> None:
        def run(table: Table) -> bool:
            while not (self.folder / "stop").exists():
                clock = require_record(table.lineage()).clock
                if clock > 5:
                    UpsertCompactor(table).run(floor=clock - 5)
                    table.cleanup()
                time.sleep(0.5)
            return True

        self.again_and_again(run)

    def _start(self) -> subprocess.Popen[bytes]:
        store = self.store()
        command = [
            str(spark_submit_path()), "--master", self.cluster.url, "--conf", "spark.ui.enabled=false",
            "--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1",
            "--conf", "spark.deploy.maxExecutorRetries=-1", str(spark_app_path("upsert_segments")),
            "--zk-hosts", store.session.settings.hosts, "--cluster", store.paths.cluster,
            "--storage-uri", store.storage.uri, "--table", "t", "--input", str(self.folder / "events"),
            "--format", "parquet", "--schema", SCHEMA, "--max-files", "1", "--wait-seconds", "120",
            "--checkpoint", str(self.folder / "checkpoint"), "--cache", str(self.folder / "cache"),
        ]  # fmt: skip
        store.close()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
        with (self.folder / "job.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**environment, **spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1", **self._credentials()},
            )  # fmt: skip

    def _credentials(self) -> dict[str, str]:
        return {STORAGE_VARIABLES[name]: value for name, value in self.s3.options.items()}


def strike(site: SparkSite, kind: str) -> None:
    match kind:
        case "driver":
            site.kill_driver()
        case "executor":
            site.cluster.kill_executor()
        case "worker":
            site.cluster.kill_worker()
        case _:
            server = site.zookeeper if kind == "ZooKeeper" else site.s3
            server.kill()
            server.start()


def test_no_read_is_wrong_and_nothing_is_lost_whatever_is_killed_on_a_cluster(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster") as cluster:
        site = SparkSite(tmp_path, cluster)
        with site.zookeeper, site.s3:
            site.s3.create_bucket("bucket")
            store = site.store()
            store.apply_config(upsert_config(deleteRecordColumn=None))
            store.close()
            count = site.write_events()
            children = [spawn(lambda number=number: site.read(number)) for number in range(2)]  # type: ignore[misc]
            children.append(spawn(site.compact))
            ingestion = threading.Thread(target=site.ingest_all)
            ingestion.start()
            for number in range(STRIKES):
                wait_for(site.clock() + 3, site)
                strike(site, KINDS[number % len(KINDS)])
            ingestion.join()
            (tmp_path / "stop").touch()
            assert exit_codes(children) == [0, 0, 0]
            store = site.store()
            table = store.table("t")
            assert sorted(balances(table, None)) == sorted(transfers()[1])
            assert require_record(table.lineage()).positions == {"/0": count}
            settle(store, "t")
            store.close()
    reads = [int((tmp_path / f"reads{number}").read_text()) for number in range(2)]
    print(f"{reads} reads beside {STRIKES} kills; the job was started {site.starts} times")
    assert min(reads) > 5
