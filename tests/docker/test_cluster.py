"""``scripts/cluster``: what it takes from the compose file, and that it refuses what it does not know."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from airflow_provider_segments.core.model.config import TableConfig
from cluster import chaos, pushes, story
from cluster.compose import DOCKER, Topology, UnknownSettingError
from cluster.processes import Cluster
from cluster.story import expect_no_secrets
from demo.airflow import DemoFailedError

COMPOSE = (DOCKER / "compose.yaml").read_text()


def topology(change: Callable[[dict[str, Any]], object] = lambda _: None) -> Topology:
    """The services of a changed compose file."""
    compose = yaml.safe_load(COMPOSE)
    change(compose)
    return Topology(Path("/nowhere"), "127.1.2", compose=yaml.safe_dump(compose))


def test_every_service_becomes_a_process_after_those_it_needs() -> None:
    services = topology().services
    assert set(services) == set(yaml.safe_load(COMPOSE)["services"])
    order = list(services)
    assert all(order.index(needed) < order.index(name) for name in order for needed in services[name].needs)
    assert len({service.host for service in services.values()}) == len(services)


def test_commands_and_settings_are_those_of_the_compose_file() -> None:
    """With addresses and folders in place of names and of a container's paths."""
    made = topology()
    hosts, services = made.hosts, made.services
    master = " ".join(services["spark-master"].command)
    assert master.endswith(f"Master --host {hosts['spark-master']} --port 7077 --webui-port 8080")
    worker = services["airflow-worker-1"].environment
    assert worker["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"http://{hosts['airflow-api-server']}:8080/execution/"
    assert worker["AIRFLOW__CELERY__BROKER_URL_CMD"] == "cat /nowhere/secrets/airflow_broker"
    assert services["kafka"].environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"1@{hosts['kafka']}:9093"
    [config] = services["zookeeper-2"].files.values()
    assert f"server.3={hosts['zookeeper-3']}:2888:3888" in config
    assert "dataDir=/nowhere/volumes/zookeeper-2\n" in config
    assert "/run/" not in config


@pytest.mark.parametrize(
    "change",
    [
        lambda compose: compose["services"].update(more={"image": "docker.io/library/nginx:1"}),
        lambda compose: compose["services"]["redis"].update(cap_add=["SYS_NICE"]),
        lambda compose: compose["services"]["kafka"]["environment"].update(KAFKA_X="/etc/kafka/x"),
        lambda compose: compose["services"]["s3"].update(volumes=[]),
    ],
    ids=["a service of an unknown image", "an unknown setting", "an unknown path", "a path without its volume"],
)
def test_what_nobody_has_thought_of_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(UnknownSettingError):
        _ = topology(change).services


def test_airflow_can_load_the_executor_that_is_configured() -> None:
    """Versions that fit by their own word need not fit: with Celery 5.7 neither scheduler nor worker started."""
    executor = topology().services["airflow-scheduler"].environment["AIRFLOW__CORE__EXECUTOR"]
    load = "from airflow.executors.executor_loader import ExecutorLoader as L; L.import_default_executor_cls()"
    environment = {**os.environ, "AIRFLOW__CORE__EXECUTOR": executor}
    done = subprocess.run([sys.executable, "-c", load], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_service_is_killed_with_everything_it_has_started_and_nothing_else(tmp_path: Path) -> None:
    """Three ZooKeepers of the topology; another object on the folder finds them."""
    cluster, other = Cluster(tmp_path / "cluster"), Cluster(tmp_path / "cluster")
    names = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
    cluster.make_secrets()
    try:
        for name in names:
            cluster.start(name)
        for name in names:
            cluster.wait_healthy(name)
        assert [len(other.processes(name)) for name in names] == [1, 1, 1]
        assert other.kill("zookeeper-2") == 1
        psutil.wait_procs(other.processes("zookeeper-2"), timeout=30)
        assert [other.is_running(name) for name in names] == [True, False, True]
        with other.store() as store:
            store.apply_config(TableConfig.from_json({"tableName": "t"}))
            assert list(store.tables()) == ["t"]
    finally:
        other.down()
    assert not cluster.all_processes()


def test_a_credential_in_a_log_or_in_a_command_line_is_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    cluster.make_secrets()
    log = tmp_path / "cluster" / "spark-worker-1" / "work" / "app-1" / "0" / "stderr"
    log.parent.mkdir(parents=True)
    log.write_text("nothing")
    password = cluster.secrets()["zookeeper_password"]
    assert expect_no_secrets(cluster, {"java -cp x"}) == 1
    with pytest.raises(DemoFailedError, match="zookeeper_password"):
        expect_no_secrets(cluster, {f"java -Dx={password}"})
    log.write_text(f"password={password}")
    with pytest.raises(DemoFailedError, match="stderr"):
        expect_no_secrets(cluster, set())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_story_of_the_demo_on_the_whole_cluster(tmp_path: Path) -> None:
    """Each step says itself what it expects: see ``cluster/story.py``. And then pushes to several tables at once."""
    with Cluster(tmp_path / "cluster") as cluster:
        story.tell(cluster)
        pushes.run(cluster, 3, ["local"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_wrong_lost_or_left_behind_while_services_are_killed(tmp_path: Path) -> None:
    """Two minutes; ``scripts/cluster chaos`` goes on for longer. What it expects is in ``cluster/chaos.py``."""
    chaos.run(tmp_path / "cluster", 2)
