"""One asset a table, so that other DAGs can be scheduled on what a push or a rollback made visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

from airflow_provider_segments.core.model.names import check_cluster_name, check_table_name
from airflow_provider_segments.core.model.variables import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from urllib.parse import SplitResult

    from airflow.sdk import Context

SCHEME = "segments"
REGIONS = "regions"
EVENTS_ALIAS = "segments"
"""Name of the asset alias through which the operators emit events: the table may be a template, known at run time."""


def segments_asset(table: str, cluster: str = DEFAULT_CLUSTER) -> Asset:
    """The asset of a table. Schedule a DAG on it to run after every push and rollback of the table::

    with DAG("report", schedule=[segments_asset("flights")]):
        ...
    """
    uri = f"{SCHEME}://{check_cluster_name(cluster)}/{quote(check_table_name(table))}"
    return Asset(name=uri, uri=uri, group="segments")


def regions_asset(table: str, cluster: str = DEFAULT_CLUSTER) -> Asset:
    """The asset of the regions of an upsert table. Schedule a DAG on it to run once when a region becomes silent, and
    once when it is heard again::

        with DAG("page_me", schedule=[regions_asset("flight_status")]):
            ...
    """
    uri = f"{segments_asset(table, cluster).uri}/{REGIONS}"
    return Asset(name=uri, uri=uri, group="segments")


def is_segments_asset(outlet: object) -> bool:
    """Return True for the asset of a table."""
    return isinstance(outlet, Asset) and outlet.uri.startswith(f"{SCHEME}://")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's check of an asset URI of our scheme. Raises :class:`ValueError` unless it names cluster and table, and
    perhaps the table's regions."""
    path = uri.path.strip("/")
    table = path.removesuffix(f"/{REGIONS}")
    if not uri.netloc or not table or "/" in table:
        raise ValueError(f"asset URI {uri.geturl()!r} must be {SCHEME}://<cluster>/<table>[/{REGIONS}]")
    return uri._replace(scheme=SCHEME, path=f"/{path}")


def emit_event(context: Context, outlets: Iterable[Any], asset: Asset, extra: Mapping[str, Any]) -> None:
    """Have Airflow record ``extra`` as an event of ``asset`` when the task succeeds.

    An outlet the DAG author has declared for the same URI carries it; otherwise the alias does.
    """
    for outlet in outlets:
        if isinstance(outlet, Asset) and outlet.uri == asset.uri:
            context["outlet_events"][outlet].extra.update(extra)
            return
    for outlet in outlets:
        if isinstance(outlet, AssetAlias) and outlet.name == EVENTS_ALIAS:
            context["outlet_events"][outlet].add(asset, extra=dict(extra))
            return
