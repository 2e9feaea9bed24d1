"""What the triggers share: a ZooKeeper session that never blocks the triggerer's loop, and patience."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from airflow_provider_segments.hooks.settings import SegmentsConnection
    from airflow_provider_segments.zookeeper.session import ZooKeeperSession

_T = TypeVar("_T")

log = logging.getLogger(__name__)


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
    from airflow_provider_segments.zookeeper.session import ZooKeeperSession

    connecting = asyncio.ensure_future(asyncio.to_thread(ZooKeeperSession.connect, settings.zookeeper))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close_late)
        raise


def _close_late(connecting: asyncio.Future[ZooKeeperSession]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
