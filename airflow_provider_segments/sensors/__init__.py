"""Sensors on a table's lineage."""
