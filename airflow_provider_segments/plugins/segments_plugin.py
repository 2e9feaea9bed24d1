"""The plugin. Every Airflow component and every ``airflow`` command imports it, so it imports nothing but Airflow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_segments import __version__

PREFIX = "/segments"
"""Where the API server mounts the page's routes."""

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
        from airflow_provider_segments.plugins.api import app

        await app(scope, receive, send)


class SegmentsPlugin(AirflowPlugin):
    """What the package adds to Airflow beyond its provider info: a page of all segment tables."""

    name = "segments"
    fastapi_apps: list[Any] = [{"name": "segments", "app": LazyApp(), "url_prefix": PREFIX}]
    react_apps: list[Any] = [
        {
            "name": "Segments",
            "bundle_url": f"{PREFIX}/static/segments.js?version={__version__}",
            "destination": "nav",
            "category": "browse",
            "url_route": "segments",
        }
    ]
