"""Two-phase deletion of stored objects (Pulsar PIP-186): mark, then delete what nobody needs any more."""
