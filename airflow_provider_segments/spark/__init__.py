"""Spark jobs as functions: build a push, read a snapshot. ``environment`` and ``settings`` need no pyspark."""
