"""The topology of ``docker/compose.yaml`` as processes of one machine."""
