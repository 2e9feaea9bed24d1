"""Table configs in ZooKeeper, as Pinot keeps them: a ZNRecord whose simple fields hold JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.names import check_table_name
from airflow_provider_segments.core.zookeeper import Create, Node, SetData, ZooKeeperSession, znrecord
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.core.zookeeper.znrecord import ZNRecord
from airflow_provider_segments.exceptions import CorruptRecordError, TableNotFoundError

_PLAIN = ("tableName", "tableType")


class ConfigStore:
    """The table configs of one cluster."""

    def __init__(self, session: ZooKeeperSession, paths: ClusterPaths) -> None:
        self._session = session
        self._paths = paths

    def tables(self) -> list[str]:
        """Names of the tables, sorted."""
        return self._session.children(self._paths.configs)

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

        Everything else a table needs in ZooKeeper is made too. Raises :class:`CommitConflictError` when somebody else
        changed the config meanwhile.
        """
        self._session.ensure(
            [
                self._paths.configs,
                self._paths.lineages,
                self._paths.readers(config.name),
                self._paths.entries(config.name),
                self._paths.registry(config.name),
            ]
        )
        path = self._paths.config(config.name)
        payload = znrecord.encode(_record(config))
        node = self._session.get(path)
        if node is None:
            self._session.commit([Create(path, payload)])
            return "created"
        if node.data == payload:
            return "unchanged"
        self._session.commit([SetData(path, payload, node.version)])
        return "updated"

    def _decode(self, table: str, node: Node) -> TableConfig:
        where = f"config of table {table!r}"
        record = znrecord.decode(node.data, where)
        if record.id != table:
            raise CorruptRecordError(f"{where}: the record says it belongs to {record.id!r}")
        return TableConfig.from_json({key: _value(key, text, where) for key, text in record.simple_fields.items()})


def _record(config: TableConfig) -> ZNRecord:
    fields: dict[str, str | None] = {
        key: value if key in _PLAIN else msgspec.json.encode(value).decode() for key, value in config.to_json().items()
    }
    return ZNRecord(config.name, fields)


def _value(key: str, text: str | None, where: str) -> Any:
    if key in _PLAIN or text is None:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CorruptRecordError(f"{where}: field {key} is not JSON ({error})") from error
