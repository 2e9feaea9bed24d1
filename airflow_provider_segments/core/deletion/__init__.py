"""Two-phase deletion of stored objects (Pulsar PIP-186). The first phase, marking, is here; nothing deletes bytes
yet."""
