"""Rows in Arrow become Parquet files of segments: what every engine that builds has in common."""
