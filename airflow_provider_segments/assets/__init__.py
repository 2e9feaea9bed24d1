"""Airflow assets for tables: ``segments://<cluster>/<table>``."""
