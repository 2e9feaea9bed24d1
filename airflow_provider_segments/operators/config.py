"""Table configs from a DAG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.operators.base import SegmentsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class ApplyTableConfigOperator(SegmentsOperator):
    """Make a table, or change its config. Applying the same config again changes nothing.

    Returns ``created``, ``updated`` or ``unchanged``::

        ApplyTableConfigOperator(
            task_id="configure",
            table="flights",
            config={
                "segmentsConfig": {"timeColumnName": "time_hour"},
                "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
                "segmentBuildConfig": {"segmentGranularity": "MONTH"},
            },
        )

    :param table: Name of the table; put into the config when that names none. (templated)
    :param config: The config in Pinot's field names, as an object, as JSON text, or as the path of a ``.json``
        file relative to the DAG. (templated)
    """

    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "config")
    template_ext: Sequence[str] = (".json",)
    template_fields_renderers = {"config": "json"}

    def __init__(self, *, config: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow's signature
        """Apply the config."""
        config = TableConfig.from_json({"tableName": self.table, **self._document()})
        if config.name != self.table:
            raise InvalidConfigError(f"the config is for table {config.name!r}, the task for table {self.table!r}")
        with self.hook.get_conn() as store:
            outcome = store.apply_config(config)
        self.log.info("Config of table %s: %s.", self.table, outcome)
        return str(outcome)

    def _document(self) -> Mapping[str, Any]:
        document = self.config
        if isinstance(document, str):
            try:
                document = json.loads(document)
            except ValueError as error:
                raise InvalidConfigError(f"the config of table {self.table!r} is not JSON: {error}") from error
        if not isinstance(document, Mapping):
            raise InvalidConfigError(f"the config of table {self.table!r} must be a JSON object")
        return document
