"""ZooKeeper's multi-read request (server 3.6 and later), which kazoo does not have.

One request reads many znodes or lists many parents. A snapshot of a year of daily chunks costs one round trip
instead of 365, and a fifth of the client's time. The reads of one request are not atomic together: nothing here
relies on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS, KazooException, NoNodeError
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request kazoo can send: ``operations`` are ``GetData`` or ``GetChildren`` without a watch.

    The reply is a list in the same order: ``(data, stat)`` or a list of names, ``None`` where there is no such node.
    Any other error of a single read is in its place.
    """

    operations: list[GetData | GetChildren]

    type: ClassVar[int] = 22

    def serialize(self) -> bytearray:
        payload = bytearray()
        for operation in self.operations:
            path = operation.path.encode()
            payload += multiheader_struct.pack(operation.type, False, -1)
            payload += int_struct.pack(len(path)) + path + b"\0"  # no watch
        payload += multiheader_struct.pack(-1, True, -1)
        return payload

    @classmethod
    def deserialize(cls, payload: bytes, offset: int) -> list[Any]:
        results: list[Any] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(payload, offset)
            offset += multiheader_struct.size
            if done:
                return results
            result, offset = _read_result(kind, payload, offset)
            results.append(result)


def _read_result(kind: int, payload: bytes, offset: int) -> tuple[Any, int]:
    if kind == GetData.type:
        data, offset = read_buffer(payload, offset)
        stat = ZnodeStat._make(stat_struct.unpack_from(payload, offset))
        return (data, stat), offset + stat_struct.size
    if kind == GetChildren.type:
        return _read_names(payload, offset)
    code = int_struct.unpack_from(payload, offset)[0]
    error: KazooException = EXCEPTIONS[code]()
    # Not raised here: kazoo would log a traceback.
    return (None if isinstance(error, NoNodeError) else error), offset + int_struct.size


def _read_names(payload: bytes, offset: int) -> tuple[list[str], int]:
    count = int_struct.unpack_from(payload, offset)[0]
    offset += int_struct.size
    names = []
    for _ in range(count):
        name, offset = read_string(payload, offset)
        names.append(name)
    return names, offset
