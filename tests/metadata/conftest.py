"""Worlds on both storages, as the tests of deletion use them."""

from tests.deletion.conftest import kind, make_world, place, s3_server

__all__ = ["kind", "make_world", "place", "s3_server"]
