"""Heartbeats, checkpoints and Leap Frog: whether regions agree, and whether they are heard. See docs/replication.md."""
