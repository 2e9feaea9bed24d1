"""What Airflow is told about this provider, without importing any of it."""

from __future__ import annotations

from typing import Any

from airflow_provider_segments import __version__

_INTEGRATION = "Segments"
_PACKAGE = "airflow_provider_segments"


def get_provider_info() -> dict[str, Any]:
    """The provider's description (entry point ``apache_airflow_provider``)."""
    return {
        "package-name": "airflow-provider-segments",
        "name": "Segments",
        "description": "Immutable table segments with atomic replacement and rollback, for Airflow and Spark.\n",
        "versions": [__version__],
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "hooks": [_modules("hooks.segments")],
        "operators": [
            _modules(
                "operators.build",
                "operators.compact",
                "operators.compare_regions",
                "operators.config",
                "operators.deletion",
                "operators.doctor",
                "operators.heartbeat",
                "operators.locks",
                "operators.removal",
                "operators.replace",
                "operators.retention",
                "operators.unfinished",
                "operators.upsert",
                "operators.validate",
            )
        ],
        "sensors": [
            _modules("sensors.deletion", "sensors.lineage", "sensors.locks", "sensors.replication", "sensors.upsert")
        ],
        "triggers": [
            _modules(
                "triggers.deletion", "triggers.lineage", "triggers.locks", "triggers.replication", "triggers.upsert"
            )
        ],
        "extra-links": [
            f"{_PACKAGE}.links.segments.SegmentsTableLink",
            f"{_PACKAGE}.links.segments.SegmentsFindingsLink",
        ],
        "connection-types": [_connection_type()],
        "asset-uris": [{"schemes": ["segments"], "handler": f"{_PACKAGE}.assets.segments.sanitize_uri"}],
        "cli": [f"{_PACKAGE}.cli.definition.get_segments_cli_commands"],
        "config": _config(),
        "plugins": [{"name": "segments", "plugin-class": f"{_PACKAGE}.plugins.segments_plugin.SegmentsPlugin"}],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "segments",
        "hook-name": "Segments",
        "hook-class-name": f"{_PACKAGE}.hooks.segments.SegmentsHook",
        "ui-field-behaviour": {
            "hidden-fields": ["schema"],
            "relabeling": {
                "host": "ZooKeeper hosts",
                "port": "ZooKeeper port",
                "login": "ZooKeeper user",
                "password": "ZooKeeper password",
            },
            "placeholders": {
                "host": "zk1:2181,zk2:2181,zk3:2181/chroot",
                "port": "for hosts that name none (2181)",
                "login": "optional",
                "cluster": "segments",
                "storage_uri": "s3://bucket/prefix or file:///data/segments",
                "endpoint_url": "https://s3.example.com",
            },
        },
        "conn-fields": {
            "storage_uri": _text("Storage URI", "Where segments are kept: s3://bucket/prefix or file:///folder"),
            "file_mode": _text("File mode", "Permissions of objects in a file system, in octal digits. Default: 640"),
            "cluster": _text("Cluster", "The root znode of the metadata. Default: segments"),
            "endpoint_url": _text("S3 endpoint URL", "For S3 servers other than AWS"),
            "region": _text("S3 region"),
            "s3_access_key": _text("S3 access key", "Left empty: boto3's standard chain", secret=True),
            "s3_secret_key": _text("S3 secret key", secret=True),
            "s3_session_token": _text("S3 session token", "Only with temporary credentials", secret=True),
            "tiered_storage_uri": _text("Tiered storage URI", "Where old segments are offloaded to; empty: nowhere"),
            "tiered_endpoint_url": _text("Tiered S3 endpoint URL", "Without any tiered S3 field the S3 fields count"),
            "tiered_region": _text("Tiered S3 region"),
            "tiered_s3_access_key": _text("Tiered S3 access key", secret=True),
            "tiered_s3_secret_key": _text("Tiered S3 secret key", secret=True),
            "tiered_s3_session_token": _text("Tiered S3 session token", secret=True),
            "deletion_parallelism": _text("Deletion parallelism", "Partitions of the deletion queue. Default: 4"),
            "reconsume_later": _text("Reconsume later", "Until a deletion is tried again. Default: 10m"),
            "max_retry_delete_count": _text("Retries of a deletion", "Then it is a dead letter. Default: 10"),
            "max_lease_age": _text("Longest reader lease", "Older ones hold up no deletion; 0s: no limit. Default: 1d"),
            "deployment": _text("Deployment", "Names this Airflow on the cluster. Default: the host of [api] base_url"),
            "zk_auth": _text("ZooKeeper authentication", "digest or sasl (DIGEST-MD5). Default: digest"),
            "tls": _switch("TLS to ZooKeeper", default=False),
            "tls_ca": _text("TLS CA file", "PEM file on the workers; a TLS file given here turns TLS on"),
            "tls_cert": _text("TLS certificate file", "PEM file of the client's certificate"),
            "tls_key": _text("TLS key file", "PEM file of the client's key"),
            "tls_key_password": _text("TLS key password", secret=True),
            "tls_verify": _switch("Verify the ZooKeeper server's certificate", default=True),
        },
    }


def _text(label: str, description: str = "", *, secret: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]} | ({"format": "password"} if secret else {})
    return {"label": label, "schema": schema} | ({"description": description} if description else {})


def _switch(label: str, *, default: bool) -> dict[str, Any]:
    return {"label": label, "schema": {"type": ["boolean", "null"], "default": default}}


def _config() -> dict[str, Any]:
    return {
        "segments": {
            "description": "Options of the segments provider.",
            "options": {
                "rollback_dag_id": _option(
                    "The DAG that the page starts to roll back; {table} stands for the table.", "segments_rollback"
                ),
                "unrevert_dag_id": _option(
                    "The DAG that the page starts to bring back; {table} stands for the table.", "segments_unrevert"
                ),
                "dead_letters_dag_id": _option(
                    "The DAG that the page starts to redrive and purge dead letters.", "segments_dead_letters"
                ),
                "revoke_dag_id": _option(
                    "The DAG that the page starts to revoke a lock; {table} stands for the table.",
                    "segments_revoke_lock",
                ),
                "retention_dag_id": _option("The page warns while this DAG is paused.", "segments_retention"),
                "deletion_dag_id": _option("The page warns while this DAG is paused.", "segments_ledger_deletion"),
                "conn_ids": _option(
                    "Connections of a secrets backend that the page shows, joined by commas: Airflow cannot list them.",
                    "",
                ),
            },
        }
    }


def _option(description: str, default: str) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "string",
        "example": None,
        "default": default,
    }
