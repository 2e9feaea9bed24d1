"""What the triggers share: one ZooKeeper session a connection that never blocks the triggerer's loop, and patience."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_segments.hooks.segments import SegmentsHook

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore
    from airflow_provider_segments.hooks.settings import SegmentsConnection

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class SegmentsTrigger(BaseTrigger):
    """Base of the triggers. Those of one connection share one ZooKeeper session."""

    def __init__(self, *, segments_conn_id: str = SegmentsHook.default_conn_name, poll_interval: float = 60.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.segments_conn_id = segments_conn_id
        self.poll_interval = poll_interval

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What makes this trigger again, besides what the base has."""

    @abstractmethod
    async def wait(self, store: SegmentStore) -> dict[str, Any]:
        """Wait, and return the event."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments. No secret among them: the triggerer looks the connection up itself."""
        arguments = {"segments_conn_id": self.segments_conn_id, "poll_interval": self.poll_interval}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**self.arguments(), **arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event. The session is given back before: whoever takes the event may never ask for another."""
        settings = await SegmentsHook(self.segments_conn_id).asettings()
        async with shared_store(settings, self.poll_interval) as store:
            found = await self.wait(store)
        yield TriggerEvent(found)  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Shared:
    """A store that triggers share, once it is open. ``users`` counts them; the last one closes it."""

    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    store: SegmentStore | None = None


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_store(settings: SegmentsConnection, poll_interval: float) -> AsyncIterator[SegmentStore]:
    """The store of a connection, open as long as somebody on this event loop uses it. ZooKeeper being away is waited
    out."""
    open_stores = _SHARED.setdefault(asyncio.get_running_loop(), {})
    shared = open_stores.setdefault(settings.fingerprint, _Shared())
    shared.users += 1
    try:
        async with shared.opening:
            if shared.store is None:
                shared.store = await patiently(lambda: _connect(settings), poll_interval)
        yield shared.store
    finally:
        shared.users -= 1
        if not shared.users:
            open_stores.pop(settings.fingerprint, None)
            if shared.store is not None:
                # Shielded: a cancelled trigger must still end its session, or the server keeps it until it times out.
                await asyncio.shield(asyncio.to_thread(shared.store.close))


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


async def when_changed(store: SegmentStore, path: str, look: Callable[[], _T | None], poll_interval: float) -> _T:
    """``look``, in a thread, whenever the znode at ``path`` changes, until it finds something.

    ``poll_interval`` seconds is the longest time between two looks, in case no watch comes. ZooKeeper being away is
    waited out.
    """
    watch = Watch(store, path)
    try:
        while True:
            # Armed before the read: a change between the two wakes us, it is never slept through.
            await patiently(watch.arm, poll_interval)
            found = await patiently(lambda: asyncio.to_thread(look), poll_interval)
            if found is not None:
                return found
            await watch.wait(poll_interval)
    finally:
        watch.forget()


async def _connect(settings: SegmentsConnection) -> SegmentStore:
    """A store. A thread cannot be cancelled: if we are, the session it still makes is closed once it is there."""
    connecting = asyncio.ensure_future(asyncio.to_thread(settings.connect))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close_late)
        raise


def _close_late(connecting: asyncio.Future[SegmentStore]) -> None:
    """Close in a thread what nobody waits for any more: closing a session waits for the server."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.get_loop().run_in_executor(None, connecting.result().close)


class Watch:
    """One watch at a time on a znode, turned into something asyncio can wait for."""

    def __init__(self, store: SegmentStore, path: str) -> None:
        self.path = path
        self._session = store.session
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._forget: Callable[[], None] | None = None

    async def arm(self) -> None:
        """Watch, unless the last watch is still waiting: a poll does not pile watch upon watch."""
        if self._forget is not None and not self._changed.is_set():
            return
        self.forget()
        self._changed.clear()
        self._forget = await asyncio.to_thread(self._session.watch, self.path, self._on_change)

    async def wait(self, seconds: float) -> None:
        """Return when the znode changed, the connection was lost, or ``seconds`` are over."""
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
