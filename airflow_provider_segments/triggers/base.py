"""What the triggers share: a ZooKeeper session that never blocks the triggerer's loop, and patience."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_segments.hooks.segments import SegmentsHook

if TYPE_CHECKING:
    from airflow_provider_segments.core.zookeeper.session import ZooKeeperSession
    from airflow_provider_segments.hooks.settings import SegmentsConnection

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class SegmentsTrigger(BaseTrigger):
    """Base of the triggers. Each holds one ZooKeeper session while it waits."""

    def __init__(self, *, segments_conn_id: str = SegmentsHook.default_conn_name, poll_interval: float = 60.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.segments_conn_id = segments_conn_id
        self.poll_interval = poll_interval

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What makes this trigger again, besides what the base has."""

    @abstractmethod
    async def wait(self, session: ZooKeeperSession, cluster: str) -> dict[str, Any]:
        """Wait, and return the event."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments. No secret among them: the triggerer looks the connection up itself."""
        arguments = {"segments_conn_id": self.segments_conn_id, "poll_interval": self.poll_interval}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**self.arguments(), **arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event. The session is closed before: whoever takes the event may never ask for another."""
        settings = await SegmentsHook(self.segments_conn_id).asettings()
        async with open_session(settings, self.poll_interval) as session:
            found = await self.wait(session, settings.cluster)
        yield TriggerEvent(found)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def open_session(settings: SegmentsConnection, poll_interval: float) -> AsyncIterator[ZooKeeperSession]:
    """A session; ZooKeeper being away is waited out."""
    session = await patiently(lambda: connect(settings), poll_interval)
    try:
        yield session
    finally:
        # Shielded: a cancelled trigger must still end its session, or the server keeps it until it times out.
        await asyncio.shield(asyncio.to_thread(session.close))


async def patiently(ask: Callable[[], Awaitable[_T]], poll_interval: float) -> _T:
    """``ask`` until ZooKeeper answers; the sensor's own time-out ends a wait that takes too long."""
    from airflow_provider_segments.exceptions import MetadataUnavailableError

    pause = min(poll_interval, 10.0)
    while True:
        try:
            return await ask()
        except MetadataUnavailableError as error:
            log.warning("%s. Looking again in %g s.", error, pause)
            await asyncio.sleep(pause)


async def connect(settings: SegmentsConnection) -> ZooKeeperSession:
    """A session. A thread cannot be cancelled: if we are, the session it still makes is closed there and then."""
    from airflow_provider_segments.core.zookeeper.session import ZooKeeperSession

    connecting = asyncio.ensure_future(asyncio.to_thread(ZooKeeperSession.connect, settings.zookeeper))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close_late)
        raise


def _close_late(connecting: asyncio.Future[ZooKeeperSession]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class Watch:
    """One watch at a time on a znode, turned into something asyncio can wait for."""

    def __init__(self, session: ZooKeeperSession, path: str) -> None:
        self._session = session
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._forget: Callable[[], None] | None = None

    async def arm(self) -> None:
        """Watch, unless the last watch is still waiting: a poll does not pile watch upon watch."""
        if self._forget is not None and not self._changed.is_set():
            return
        self.forget()
        self._changed.clear()
        self._forget = await asyncio.to_thread(self._session.watch, self._path, self._on_change)

    async def wait(self, seconds: float) -> None:
        """Return when the znode changed, the session was lost, or ``seconds`` are over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def forget(self) -> None:
        """Stop watching."""
        if self._forget is not None:
            self._forget()
            self._forget = None

    def _on_change(self) -> None:
        """Called by kazoo's thread. A loop that has closed meanwhile has nobody left to wake."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._changed.set)
