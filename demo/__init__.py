"""The main job, shown on real data by ``scripts/demo``."""
