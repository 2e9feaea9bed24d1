"""The DAGs that come with the package, run as they are: push, push, look before rolling back, roll back."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.exceptions import ParamValidationError

from airflow_provider_segments.assets.segments import segments_asset
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.operators.replace import EndReplaceSegmentsOperator, RevertReplaceSegmentsOperator
from tests.airflow.helpers import REPOSITORY, RunDag, make_table, push_rows, states


def dags() -> dict[str, DAG]:
    """The DAGs, parsed afresh: ``dag.test()`` keeps the parameters of a run as the next one's defaults."""
    bag = DagBag(dag_folder=str(REPOSITORY / "dags"))
    assert not bag.import_errors
    return dict(bag.dags)


def write_flights(path: Path, rows: int) -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["time_hour", "carrier", "dep_delay"])
        out.writerows((f"2013-{1 + row % 3:02}-07T{row % 24:02}:00:00Z", "UA", row) for row in range(rows))
    return path


def xcom(run: Any, task_id: str, key: str = "return_value") -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.execute(
            XComModel.get_many(run_id=run.run_id, dag_ids=run.dag_id, task_ids=task_id, key=key)
        ).scalars()
        return XComModel.deserialize_value(next(iter(found)))


def test_push_push_rollback(run_dag: RunDag, store: SegmentStore, table_name: str, tmp_path: Path) -> None:
    def rolled_back(**conf: Any) -> Any:
        return run_dag(dags()["segments_rollback"], {"table": table_name, **conf})

    def pushed(rows: int) -> Any:
        path = write_flights(tmp_path / f"{rows}.csv", rows)
        run = run_dag(dags()["segments_consistent_push"], {"table": table_name, "input": str(path), "min_rows": rows})
        assert run.state == "success", states(run)
        return run

    table = store.table(table_name)
    first = pushed(30)
    assert (table.snapshot().rows, len(table.snapshot())) == (30, 3)
    assert xcom(first, "push.configure") == "created"
    second = pushed(12)
    assert table.snapshot().rows == 12
    result = xcom(second, "push.end")
    assert (result["rows"], result["segments"], result["replaced"]) == (12, 3, 3)
    assert xcom(second, "push.configure") == "unchanged"
    assert states(second)["push.revert"] == "skipped"

    looked = rolled_back()
    assert looked.state == "success"
    said = xcom(looked, "rollback")
    assert (said["dry_run"], said["reappeared"], table.snapshot().rows) == (True, 3, 12)
    assert (said["before"]["rows"], said["after"]["rows"]) == (12, 30)

    undone = rolled_back(entry_id=result["entry_id"][:8], dry_run=False)
    assert undone.state == "success"
    assert xcom(undone, "rollback")["entry_id"] == result["entry_id"]
    assert table.snapshot().rows == 30

    for again in ({"entry_id": result["entry_id"]}, {"entry_id": "latest"}):
        refused = rolled_back(**again, dry_run=False)
        assert refused.state == "failed"
        assert table.snapshot().rows == 30

    back = run_dag(dags()["segments_unrevert"], {"table": table_name, "dry_run": False})
    assert back.state == "success"
    assert table.snapshot().rows == 12
    assert asset_changes(table_name, store.paths.cluster) == ["end", "end", "revert", "unrevert"]


def asset_changes(table_name: str, cluster: str) -> list[str]:
    """What consumers scheduled on the table's asset were told, in order. The dry run and the refusal told nothing."""
    return [str(extra.get("change")) for extra in asset_events(segments_asset(table_name, cluster))]


def asset_events(asset: Asset) -> list[dict[str, Any]]:
    """What Airflow has recorded with each event of an asset."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        query = query.where(AssetModel.uri == asset.uri)
        return [event.extra or {} for event in session.scalars(query.order_by(AssetEvent.id))]


def test_concrete_tables_are_outlets_and_templates_go_through_the_alias() -> None:
    for table, assets in (("flights", [segments_asset("flights")]), ("{{ params.table }}", [])):
        end = EndReplaceSegmentsOperator(task_id="end", table=table, entry_id="e")
        assert end.outlets == [*assets, AssetAlias(name="segments", group="segments")]
    declared = [segments_asset("flights")]
    assert (
        EndReplaceSegmentsOperator(task_id="e", table="flights", entry_id="e", outlets=declared).outlets[:-1]
        == declared
    )
    silent = EndReplaceSegmentsOperator(task_id="e", table="flights", entry_id="e", asset_events=False)
    assert silent.outlets == []


@pytest.mark.parametrize("knows_cluster", [True, False])
def test_outlets_tell_of_changes_only_and_of_the_right_table(
    run_dag: RunDag, store: SegmentStore, table_name: str, tmp_path: Path, knows_cluster: bool
) -> None:
    """Airflow would record an event of each outlet of a task that succeeds, also of one that has changed nothing."""
    table = make_table(store, table_name)
    for rows in ([1], [1, 2]):
        push_rows(table, tmp_path, {"a": rows})
    cluster = {"asset_cluster": store.paths.cluster} if knows_cluster else {}
    for dry_run in (True, False):
        with DAG("rollback_of_a_table", schedule=None) as dag:
            RevertReplaceSegmentsOperator(
                task_id="rollback", table=table_name, entry_id="latest", dry_run=dry_run, **cluster
            )
        done = run_dag(dag)
        assert done.state == "success", states(done)
        assert asset_changes(table_name, store.paths.cluster) == ([] if dry_run else ["revert"])
    [told] = asset_events(segments_asset(table_name, store.paths.cluster))
    assert {"entry_id", "visible_rows", "visible_bytes", "visible_segments"} <= set(told)
    assert told["visible_rows"] == 1
    assert asset_events(segments_asset(table_name)) == [], "there is no such table"


def test_rollback_of_an_unknown_table_fails_in_the_protocols_words(
    run_dag: RunDag, store: SegmentStore, capfd: pytest.CaptureFixture[str], table_name: str
) -> None:
    make_table(store, "other")
    run = run_dag(dags()["segments_rollback"], {"table": table_name})
    assert run.state == "failed"
    said = "".join(capfd.readouterr())
    assert "TableNotFoundError" in said
    assert table_name in said


@pytest.mark.parametrize("dag_id", ["segments_rollback", "segments_unrevert"])
def test_form_of_a_rollback_names_no_table_and_changes_nothing_unless_told_to(dag_id: str) -> None:
    """One click on the form used to roll another table back."""
    params = dags()[dag_id].params
    assert params.get_param("dry_run").value is True
    assert not params.get_param("table").has_value
    with pytest.raises(ParamValidationError):
        params.validate()


@pytest.mark.parametrize(
    ("dag_id", "given"),
    [
        ("segments_dead_letters", {}),
        ("segments_dead_letters", {"ids": ["0000abcd"]}),
        ("segments_dead_letters", {"action": "purge"}),
        ("segments_dead_letters", {"action": "purge", "ids": []}),
        ("segments_dead_letters", {"action": "forget", "ids": ["0000abcd"]}),
        ("segments_dead_letters", {"action": "purge", "ids": "0000abcd"}),
        ("segments_revoke_lock", {}),
        ("segments_revoke_lock", {"table": "t"}),
        ("segments_revoke_lock", {"table": "t", "lock_id": "abc"}),
    ],
)
def test_forms_of_an_operator_have_no_default_target(dag_id: str, given: dict[str, Any]) -> None:
    params = dags()[dag_id].params
    for name, value in given.items():
        with suppress(ParamValidationError):
            params[name] = value
    with pytest.raises(ParamValidationError):
        params.validate()


def test_every_parameter_of_the_forms_has_a_title() -> None:
    for dag in dags().values():
        for name in dag.params:
            assert dag.params.get_param(name).schema.get("title"), f"{dag.dag_id}: {name}"


def test_asset_of_a_table_is_one_uri_and_strange_uris_are_refused() -> None:
    from urllib.parse import urlsplit

    from airflow_provider_segments.assets.segments import sanitize_uri
    from airflow_provider_segments.exceptions import InvalidNameError

    assert segments_asset("flights").uri == "segments://segments/flights"
    for bad in ("segments://", "segments:///flights", "segments://c/a/b"):
        with pytest.raises(ValueError, match="must be"):
            sanitize_uri(urlsplit(bad))
    with pytest.raises(InvalidNameError):
        segments_asset("a/b")
