"""Table configs in ZooKeeper, as Pinot keeps them: a ZNRecord whose simple fields hold JSON text."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.lineage import codec
from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.lineage.records import lost_lineage
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.names import check_table_name, is_table_name
from airflow_provider_segments.core.model.records import decode_as
from airflow_provider_segments.core.registry.registry import Root, encode_root
from airflow_provider_segments.core.upsert.record import UpsertRecord, store_record
from airflow_provider_segments.core.zookeeper import CommitConflictError, Create, Node, SetData, znrecord
from airflow_provider_segments.core.zookeeper.znrecord import ZNRecord
from airflow_provider_segments.exceptions import (
    ConfigRefusedError,
    CorruptRecordError,
    InvalidConfigError,
    InvalidNameError,
    TableNotFoundError,
)

_JSON = msgspec.json.Decoder()
_PLAIN = ("tableName", "tableType")


class TableConfigs:
    """The table configs of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._session = cluster.session
        self._paths = cluster.paths

    def tables(self) -> list[str]:
        """Names of the tables, sorted. Raises :class:`ClusterNotFoundError` when the cluster was never made."""
        return [name for name in self._children() if is_table_name(name)]

    def strays(self) -> list[str]:
        """Names among the table configs that cannot be a table's: somebody else's znodes, which are left alone."""
        return [name for name in self._children() if not is_table_name(name)]

    def _children(self) -> list[str]:
        found = self._session.children(self._paths.configs)
        if not found:
            self._cluster.check_made()
        return found

    def get(self, table: str) -> TableConfig:
        """The table's config. Raises :class:`TableNotFoundError` and :class:`CorruptRecordError`."""
        node = self._session.get(self._paths.config(check_table_name(table)))
        if node is None:
            known = ", ".join(self.tables()[:10]) or "none"
            raise TableNotFoundError(
                f"table {table!r} has no config in cluster {self._paths.cluster!r}; apply one first. "
                f"Tables here: {known}"
            )
        return self._decode(table, node)

    def apply(self, config: TableConfig) -> str:
        """Make or change the table's config by compare-and-set: ``created``, ``updated`` or ``unchanged``.

        Everything else a table needs in ZooKeeper is made too. Raises :class:`ConfigRefusedError` for a table that a
        Pinot controller manages, and :class:`CommitConflictError` when somebody else
        changed the config meanwhile, and :class:`InvalidConfigError` for a change that an upsert table does not allow.
        """
        self._check_not_pinots(config.name)
        self._session.ensure(
            [
                self._paths.configs,
                self._paths.lineages,
                self._paths.readers(config.name),
                self._paths.log(config.name),
                self._paths.entries(config.name),
                self._paths.registries,
            ]
        )
        path = self._paths.config(config.name)
        payload = znrecord.encode(_record(config))
        node = self._session.get(path)
        if node is None:
            # The lineage comes first: a table without one is damaged, and must not read as empty.
            self._make_lineage(config)
            self._make_registry(config.name)
            self._session.commit([Create(path, payload)])
            return "created"
        if node.data == payload:
            return "unchanged"
        _check_upsert(self._decode(config.name, node), config)
        self._session.commit([SetData(path, payload, node.version)])
        return "updated"

    def _check_not_pinots(self, table: str) -> None:
        """Two that clean up one lineage each drop entries that the other still needs: queries count rows twice."""
        path = self._paths.ideal_state(table)
        if self._session.get(path) is not None:
            raise ConfigRefusedError(
                "pinot-manages",
                f"a Pinot controller manages the table: {path} is there",
                table=table,
                hint="Use a cluster name of its own for this package's tables; docs/lineage.md says what may be "
                "shared with Pinot.",
            )

    def _make_lineage(self, config: TableConfig) -> None:
        """Make an empty lineage, unless the table has one already. Raises :class:`CorruptRecordError` when it has none
        and was in use."""
        table = config.name
        path = self._paths.lineage(table)
        if self._session.get(path) is not None:
            return
        if self._session.children(self._paths.entries(table)) or self._session.children(self._paths.registry(table)):
            raise lost_lineage(table, path)
        with suppress(CommitConflictError):  # somebody else has made it
            self._session.commit([Create(path, codec.encode(_empty_lineage(config)))])

    def _make_registry(self, table: str) -> None:
        """Make an empty registry, unless the table has one already."""
        path = self._paths.registry(table)
        if self._session.get(path) is None:
            with suppress(CommitConflictError):  # somebody else has made it
                self._session.commit([Create(path, encode_root(Root.new()))])

    def _decode(self, table: str, node: Node) -> TableConfig:
        return decode_config(node.data, table, self._paths.config(table))


def decode_config(payload: bytes, table: str, where: str) -> TableConfig:
    """The config in ``payload``, which was read from the znode ``where``. Raises :class:`CorruptRecordError`."""
    record = znrecord.decode(payload, where)
    if record.id != table:
        raise CorruptRecordError(f"{where}: the record says it belongs to {record.id!r}")
    fields = {key: _value(key, text, where) for key, text in record.simple_fields.items()}
    try:
        return TableConfig.from_json(fields)
    except (InvalidConfigError, InvalidNameError) as error:
        raise CorruptRecordError(
            f"{where}: {error}; restore the znode, or remove it and apply the config again"
        ) from error


def _empty_lineage(config: TableConfig) -> Lineage:
    empty = Lineage(config.name)
    return store_record(empty, UpsertRecord.new(config.upsert.key_partitions)) if config.upsert else empty


def _check_upsert(before: TableConfig, after: TableConfig) -> None:
    """Raise :class:`InvalidConfigError` for a change that the rows of an upsert table do not allow."""
    if before.upsert is not None:
        before.upsert.check_change(after.upsert, after.name)
    elif after.upsert is not None:
        raise InvalidConfigError(
            f"table {after.name!r} exists and cannot become an upsert table: its rows were never compared by key; "
            "make another table, and push the rows into it"
        )


def _record(config: TableConfig) -> ZNRecord:
    fields: dict[str, str | None] = {
        key: value if key in _PLAIN else msgspec.json.encode(value).decode() for key, value in config.to_json().items()
    }
    return ZNRecord(config.name, fields)


def _value(key: str, text: str | None, where: str) -> Any:
    if key in _PLAIN or text is None:
        return text
    return decode_as(_JSON, text, where, f"field {key[:80]!r}")
