"""Which segments to merge or split, and why. Pure: the work itself is in ``spark/compact.py``."""
