"""What work costs besides its time: CPU, requests and bytes to ZooKeeper, requests to S3, bytes written to files."""

from __future__ import annotations

import re
import socket
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from benchmarks.places import Place
from benchmarks.report import show, table

COSTS = ("CPU ms", "reads", "writes", "ZK KiB", "S3 requests", "S3 KiB", "files KiB")
NOTES = """\
Costs are of one round (mean), of the process that asks. "reads" and "writes" are requests to ZooKeeper, pings apart:
each is a round trip (several reads may be out at once), and each write is synced to its disk by every server that
acknowledges it. "S3 requests" and "S3 KiB" (bodies, both ways) are what the S3 server counted, "files KiB" what the
process wrote to files; the peers sync none of those. Requests of the peers' own look at the files after a step, and
the writing of the objects that a push publishes, are not counted."""

_WRITES = {"Transaction", "Create", "Create2", "SetData", "Delete", "SetACL", "Reconfig"}
_TCP_INFO_BYTES = struct.Struct("=120xQQ")  # Linux: bytes acknowledged by the other side, bytes received
_TOTAL = re.compile(r'^SeaweedFS_s3_request_total\{bucket="bench".*\} (\S+)$', re.MULTILINE)
_TRAFFIC = re.compile(r'^SeaweedFS_s3_bucket_traffic_\w+_bytes_total\{bucket="bench"\} (\S+)$', re.MULTILINE)

Costs = Mapping[str, float]


class Meter:
    """Measures work of this process against one place, and, of ours, one ZooKeeper session."""

    def __init__(self, where: Place | None = None, session: ZooKeeperSession | None = None) -> None:
        self._metrics = where.metrics if where else ""
        self._session = session
        self._requests: Counter[str] = Counter() if session is None else requests(session)
        self._spent: Counter[str] = Counter()

    def timed(self, work: Callable[[], object]) -> float:
        """Milliseconds that ``work`` takes; its costs are added to what :meth:`taken` returns."""
        before = self._now()
        began = time.perf_counter()
        work()
        taken = (time.perf_counter() - began) * 1000
        for name, value in self._now().items():
            self._spent[name] += value - before[name]  # type: ignore[assignment]  # Counter does count floats
        return taken

    def taken(self) -> Costs:
        """The costs since the last call."""
        spent, self._spent = self._spent, Counter()
        return spent

    def _now(self) -> dict[str, float]:
        found = dict.fromkeys(COSTS, 0.0)
        if self._metrics:
            with urllib.request.urlopen(self._metrics) as reply:
                text = reply.read().decode()
            found["S3 requests"] = sum(map(float, _TOTAL.findall(text)))
            found["S3 KiB"] = sum(map(float, _TRAFFIC.findall(text))) / 1024
        if self._session is not None:
            found["writes"] = sum(self._requests[name] for name in _WRITES)
            found["reads"] = sum(self._requests.values()) - found["writes"]
            found["ZK KiB"] = _bytes(self._session) / 1024
        found["files KiB"] = _written() / 1024
        found["CPU ms"] = time.process_time() * 1000
        return found


def requests(session: ZooKeeperSession) -> Counter[str]:
    """Counts the requests that ``session`` sends from now on, by kind."""
    client: Any = session._client
    found: Counter[str] = Counter()
    real = client._call

    def call(request: Any, pending: Any) -> Any:
        found[type(request).__name__] += 1
        return real(request, pending)

    client._call = call
    return found


def mean(rounds: Sequence[Costs]) -> Costs:
    """What one of ``rounds`` cost."""
    return {name: sum(one.get(name, 0.0) for one in rounds) / len(rounds) for name in COSTS}


def cost_table(title: str, rows: Mapping[str, Costs]) -> str:
    """A line a row, with the columns in which something is to be seen."""
    columns = [name for name in COSTS if any(row.get(name) for row in rows.values())]
    cells = [
        [name, *(show(row[column]) if row.get(column) else "-" for column in columns)] for name, row in rows.items()
    ]
    return f"\n{title}\n{table(['', *columns], cells)}"


def _bytes(session: ZooKeeperSession) -> int:
    """Bytes of the session's connection, both ways."""
    client: Any = session._client
    info = client._connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return sum(_TCP_INFO_BYTES.unpack_from(info))


def _written() -> int:
    found = re.search(r"^wchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
