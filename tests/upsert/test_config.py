"""What an upsert table's config may say, and what cannot be changed in place."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import InvalidConfigError, StartRefusedError, UpsertRefusedError
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from tests.support.tables import make_table, push
from tests.upsert.world import Event, to_arrow, upsert_config


def document(schema: Any = ("k",), **upsert: Any) -> dict[str, Any]:
    section = {"mode": "FULL", "comparisonColumns": ["ts"], **upsert}
    return {"tableName": "t", "schema": {"primaryKeyColumns": list(schema)}, "upsertConfig": section}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (document(schema=[]), "primaryKeyColumns"),
        (document(mode="SOME"), "mode must be one of"),
        (document(comparisonColumns=["a", "b"]), "exactly one comparison column"),
        (document(comparisonColumns=["k"]), "part of the key"),
        (document(keyPartitions=0), "keyPartitions"),
        (document(keyPartition=4), "no field keyPartition"),
        (document(partialUpsertStrategies={"a": "INCREMENT"}), "needs mode PARTIAL"),
        (document(mode="PARTIAL", partialUpsertStrategies={"a": "ADD"}), "partialUpsertStrategies.a"),
        (document(mode="PARTIAL", partialUpsertStrategies={"ts": "MAX"}), "decides which row wins"),
        (document(dropOutOfOrderRecord=True, outOfOrderRecordColumn="late"), "both"),
        (document(metadataTTL="14d"), "retentionTimeValue"),
        (document() | {"segmentBuildConfig": {"segmentLocking": True}}, "without segmentLocking"),
        (document() | {"segmentsConfig": {"segmentPushType": "REFRESH"}}, "an APPEND table"),
        (
            document() | {"segmentsConfig": {"retentionTimeUnit": "DAYS", "retentionTimeValue": "7"}},
            "comparison column",
        ),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_its_field(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        TableConfig.from_json(wrong)


@pytest.mark.parametrize(
    "changed",
    [
        document(["k", "region"]),
        document(keyPartitions=8),
        document(comparisonColumns=["other"]),
        document(mode="NONE"),
    ],
)
def test_key_order_and_partitions_cannot_be_changed_in_place(store: SegmentStore, changed: dict[str, Any]) -> None:
    store.apply_config(TableConfig.from_json(document()))
    assert store.apply_config(TableConfig.from_json(document(keepVersions=7))) == "updated"
    with pytest.raises(InvalidConfigError, match="make another table"):
        store.apply_config(TableConfig.from_json(changed))


def test_a_table_with_rows_does_not_become_an_upsert_table(store: SegmentStore) -> None:
    make_table(store, "t")
    with pytest.raises(InvalidConfigError, match="cannot become an upsert table"):
        store.apply_config(TableConfig.from_json(document()))


def test_the_config_survives_its_way_through_zookeeper(store: SegmentStore) -> None:
    config = upsert_config(outOfOrderRecordColumn="late", regions=["eu", "us"])
    store.apply_config(config)
    assert store.table("t").config().upsert == config.upsert


def test_a_table_without_upsert_config_has_no_marks(store: SegmentStore) -> None:
    table = make_table(store, "t")
    push(table, 1)
    assert table.snapshot().mark is None
    with pytest.raises(UpsertRefusedError, match="no-upsert-table"):
        table.snapshot(mark=1)
    with pytest.raises(UpsertRefusedError, match="no-upsert-table"):
        UpsertIngestor(table)


def test_an_ordinary_push_replaces_no_segments_of_an_upsert_table(store: SegmentStore, tmp_path: Any) -> None:
    store.apply_config(upsert_config())
    table = store.table("t")
    UpsertIngestor(table, cache=tmp_path).ingest(to_arrow([Event(1, 0, 0, "a", "v", False)]))
    with pytest.raises(StartRefusedError, match="upsert-replaces"):
        table.start(table.snapshot().names)
