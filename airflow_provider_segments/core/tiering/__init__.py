"""Moving old segments to tiered storage: copied first, recorded next, and taken from primary storage last."""
