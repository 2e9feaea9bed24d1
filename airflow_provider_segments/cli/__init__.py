"""The command line: ``segments ...`` without Airflow, and the same commands as ``airflow segments ...``."""
