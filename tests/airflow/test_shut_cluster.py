"""The example DAGs on a ZooKeeper that is shut: pushes as its writer, the rollback as its operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.helpers import RunDag, states
from tests.airflow.test_dags import dags, write_flights
from tests.airflow.test_secrets import database_text, log_text
from tests.doors.secure import PASSWORDS, SecureZooKeeper, secure_zookeeper
from tests.support.processes import command_lines


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    with secure_zookeeper(tmp_path_factory.mktemp("secure")) as server:
        yield server


def described(zookeeper: SecureZooKeeper, kind: str, who: str, cluster: str, storage: Path) -> str:
    """The connection of somebody."""
    more: dict[str, Any] = {
        "digest": {},
        "sasl": {"zk_auth": "sasl"},
        "tls": {"tls": True, "tls_ca": zookeeper.ca},
    }[kind]
    return json.dumps(
        {
            "conn_type": "segments",
            "host": zookeeper.tls_hosts if kind == "tls" else zookeeper.hosts,
            "login": who,
            "password": PASSWORDS[who],
            "extra": {"cluster": cluster, "storage_uri": storage.as_uri(), "deployment": "tests", **more},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["digest", "sasl", "tls"])
def test_the_writer_pushes_and_only_the_operator_rolls_back(
    zookeeper: SecureZooKeeper,
    run_dag: RunDag,
    table_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    cluster, storage = f"shut_{table_name}", tmp_path / "segments"

    def become(who: str) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", described(zookeeper, kind, who, cluster, storage))

    def rows() -> int:
        with zookeeper.store("reader", kind, cluster, storage) as store:
            return store.table(table_name).snapshot().rows

    def rolled_back() -> str:
        return str(run_dag(dags()["segments_rollback"], {"table": table_name, "dry_run": False}).state)

    storage.mkdir()
    with zookeeper.store("operator", kind, cluster, storage) as operator:
        operator.cluster.session.ensure([operator.paths.root])
    zookeeper.apply_roles(kind, cluster, storage)
    become("writer")
    with command_lines() as commands:
        for number in (30, 12):
            conf = {"table": table_name, "input": str(write_flights(tmp_path / f"{number}.csv", number)), "min_rows": 1}
            run = run_dag(dags()["segments_consistent_push"], conf)
            assert run.state == "success", states(run)
            assert rows() == number
    assert rolled_back() == "failed" and rows() == 12
    become("operator")
    assert rolled_back() == "success" and rows() == 30
    places = ["\n".join(commands), database_text(), log_text(), "".join(capfd.readouterr())]
    assert not [who for who, password in PASSWORDS.items() if any(password in text for text in places)]
