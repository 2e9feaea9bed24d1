"""A snapshot as an Arrow dataset, read through its object store, so that local files and S3 are alike."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow
import pyarrow.dataset
import pyarrow.fs

if TYPE_CHECKING:
    from airflow_provider_segments.core.snapshot import Snapshot
    from airflow_provider_segments.core.storage.base import ObjectStore


def dataset_of(snapshot: Snapshot, storage: ObjectStore) -> pyarrow.dataset.Dataset | None:
    """The rows of ``snapshot``; ``None`` when it has no segments, and so no schema.

    Nothing is opened but the first file, for its schema.
    """
    keys = snapshot.files
    if not keys:
        return None
    files = pyarrow.fs.PyFileSystem(_StoreHandler(storage))
    # Read columns as they are decoded, not whole row groups ahead: less memory, and no slower.
    streaming = pyarrow.dataset.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
    parquet = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=streaming)
    fragments = [parquet.make_fragment(key, filesystem=files) for key in keys]
    schema = fragments[0].physical_schema
    return _Bounded(fragments, schema, parquet, files)


class _Bounded(pyarrow.dataset.FileSystemDataset):  # type: ignore[misc]
    """Looks ahead by little, so that memory does not grow with the number of files."""

    def scanner(self, **options: Any) -> Any:
        return super().scanner(**{"batch_readahead": 2, "fragment_readahead": 1, **options})


class _StoreHandler(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """The part of Arrow's file system that reading a dataset of known files needs; the rest refuses."""

    def __init__(self, storage: ObjectStore) -> None:
        self._storage = storage

    def get_type_name(self) -> str:
        return "segments"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> Any:
        return pyarrow.PythonFile(self._storage.open(path), mode="r")

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:
        found = self._storage.head(path)
        if found is None:
            return pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.NotFound)
        return pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.File, size=found.bytes)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, "a snapshot's files are only read")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
