"""An HTTP proxy that misbehaves on request: answers with an error, cuts the connection, or loses the reply."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

PASS, CUT, LOSE_REPLY, CUT_BODY, HANG, SLOW = "pass", "cut", "lose-reply", "cut-body", "hang", "slow"
SLOW_S = 3.0


class FaultyProxy:
    """Stands before ``target``. ``decide(method, path, count)`` says what becomes of the ``count``-th request.

    ``PASS``, ``CUT`` (not forwarded), ``LOSE_REPLY`` (forwarded, the answer never arrives), ``CUT_BODY`` (the answer
    breaks off half-way), ``HANG`` (not forwarded, no answer until the client gives up), ``SLOW`` (forwarded after
    ``SLOW_S`` seconds), or an HTTP status to answer with. A target that is not there is a ``CUT``.
    """

    def __init__(self, target: str, decide: Callable[[str, str, int], str | int]) -> None:
        self._target = urlsplit(target)
        self._decide = decide
        self._count = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def next_fault(self, method: str, path: str) -> str | int:
        """What to do with the request that has just come in."""
        with self._lock:
            self._count += 1
            return self._decide(method, path, self._count)

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> http.client.HTTPResponse:
        """The server's answer."""
        connection = http.client.HTTPConnection(self._target.hostname or "", self._target.port, timeout=30)
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                fault = proxy.next_fault(self.command, self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if isinstance(fault, int):
                    self._answer(fault, [], b"")
                    return
                if fault == HANG:
                    self.rfile.read(1)  # until the client closes
                if fault in (CUT, HANG):
                    self.close_connection = True
                    return
                if fault == SLOW:
                    time.sleep(SLOW_S)
                try:
                    reply = proxy.forward(self.command, self.path, dict(self.headers.items()), body)
                    data = reply.read()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True
                    return
                if fault == LOSE_REPLY:
                    self.close_connection = True
                    return
                self._answer(reply.status, reply.getheaders(), data, cut=fault == CUT_BODY)

            def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False) -> None:
                self.send_response_only(status)
                length = str(len(data))
                for name, value in headers:
                    if name.lower() == "content-length":
                        length = value if self.command == "HEAD" else length
                    elif name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data[: len(data) // 2] if cut else data)
                self.close_connection |= cut

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

            def handle_expect_100(self) -> bool:
                self.send_response_only(100)
                self.end_headers()
                return True

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing: the tests say what went wrong."""

        return Handler
