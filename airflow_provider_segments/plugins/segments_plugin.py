"""The plugin. Every Airflow component and every ``airflow`` command imports it, so it imports nothing but Airflow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_segments import __version__

PREFIX = "/segments"
"""Where the API server mounts the page's routes."""

_SCRIPT = f"{PREFIX}/static/segments.js?version={__version__}"
_Message = MutableMapping[str, Any]


class LazyApp:
    """The page's ASGI application, imported with its first request: only the API server ever gets one."""

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        app = await asyncio.to_thread(_load)
        await app(scope, receive, send)


def _load() -> Any:
    """Import in a thread of its own: other requests are answered meanwhile."""
    from airflow_provider_segments.plugins.api import app

    return app


class SegmentsPlugin(AirflowPlugin):
    """What the package adds to Airflow beyond its provider info: a page of all segment tables, and a tab of DAG runs
    and tasks."""

    name = "segments"
    fastapi_apps: list[Any] = [{"name": "segments", "app": LazyApp(), "url_prefix": PREFIX}]
    react_apps: list[Any] = [
        {"name": "Segments", "bundle_url": _SCRIPT, **place}
        for place in (
            {"destination": "nav", "category": "browse", "url_route": "segments"},
            {"destination": "dag_run", "url_route": "segments-run"},
            {"destination": "task_instance", "url_route": "segments-task"},
        )
    ]
