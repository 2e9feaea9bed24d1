"""A TCP proxy between a client and a server that can cut, delay, or drop only replies: a bad network, made to order."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class TcpProxy:
    """Forwards ``127.0.0.1:port`` to ``target``; use it in a ``with``.

    ``delay`` is added to every reply, in seconds. :meth:`drop_replies` lets requests through and swallows what comes
    back, :meth:`cut` closes every connection, :meth:`refuse` also turns new ones away until :meth:`heal`.
    ``on_request`` sees every block a client sends, before it is forwarded.
    """

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay = 0.0
        self.on_request: Callable[[bytes], None] = lambda block: None
        self._dropping = threading.Event()
        self._refusing = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def drop_replies(self) -> None:
        """From now on requests arrive and replies do not, on connections old and new."""
        self._dropping.set()

    def cut(self) -> None:
        """Close every connection. Clients may connect again."""
        with self._lock:
            doomed, self._open = self._open, set()
        for connection in doomed:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def refuse(self) -> None:
        """Close every connection and turn new ones away."""
        self._refusing = True
        self.cut()

    def heal(self) -> None:
        """Let everything through again."""
        self._dropping.clear()
        self._refusing = False
        self.delay = 0.0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.refuse()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._replies, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while block := _receive(client):
            self.on_request(block)
            if not _send(server, block):
                break
        _hang_up(client, server)

    def _replies(self, server: socket.socket, client: socket.socket) -> None:
        while block := _receive(server):
            if self.delay:
                time.sleep(self.delay)
            if not self._dropping.is_set() and not _send(client, block):
                break
        _hang_up(client, server)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except OSError:
        return b""


def _send(connection: socket.socket, block: bytes) -> bool:
    try:
        connection.sendall(block)
    except OSError:
        return False
    return True


def _hang_up(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
