"""The plugin. Every Airflow component and every ``airflow`` command imports it, so it imports nothing but Airflow."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class SegmentsPlugin(AirflowPlugin):
    """What the package adds to Airflow beyond its provider info."""

    name = "segments"
