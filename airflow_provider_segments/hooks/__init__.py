"""Hooks: from an Airflow connection to a :class:`~airflow_provider_segments.core.table.SegmentStore`."""
