"""Segment lineage: entries, their guards and codec, and which names they hide (Pinot's consistent push)."""
