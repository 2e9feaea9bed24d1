"""Events that a stream's checkpoint counts as read while a barrier still holds them, kept beside that checkpoint.

A micro-batch that Spark sends again finds what the one before it had left: each leaves a file, and the newest two stay.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.fs
import pyarrow.parquet


class HeldEvents:
    """Held events of the stream whose ``checkpoint`` folder that is: a path, or a URI that Arrow can open."""

    def __init__(self, checkpoint: str) -> None:
        where = checkpoint.replace("s3a://", "s3://", 1) if "://" in checkpoint else str(Path(checkpoint).absolute())
        self._files, folder = pyarrow.fs.FileSystem.from_uri(where)
        self._folder = f"{folder}/held"

    def before(self, batch: int) -> pyarrow.Table | None:
        """What was held when micro-batch number ``batch`` began."""
        numbers = [number for number in self._numbers() if number < batch]
        return pyarrow.parquet.read_table(self._path(numbers[-1]), filesystem=self._files) if numbers else None

    def store(self, batch: int, held: pyarrow.Table | None) -> None:
        """Keep what is held after micro-batch number ``batch``. What was held before it stays until the next one."""
        older = [number for number in self._numbers() if number < batch]
        if held is None:
            held = pyarrow.table({})
        self._files.create_dir(self._folder)
        writing = f"{self._folder}/writing"
        pyarrow.parquet.write_table(held, writing, filesystem=self._files)
        self._files.move(writing, self._path(batch))
        for number in older[:-1]:
            self._files.delete_file(self._path(number))

    def _numbers(self) -> list[int]:
        chosen = pyarrow.fs.FileSelector(self._folder, allow_not_found=True)
        names = [found.base_name for found in self._files.get_file_info(chosen)]
        return sorted(int(name.removesuffix(".parquet")) for name in names if name.endswith(".parquet"))

    def _path(self, batch: int) -> str:
        return f"{self._folder}/{batch}.parquet"
