"""Segment lineage: start, stage, end, revert, routing and clean-up of replacements (Pinot's consistent push)."""
