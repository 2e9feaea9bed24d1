"""The environment variables that describe a store to a job or a command.

============================== =====================================================================
variable                       what it is
============================== =====================================================================
SEGMENTS_S3_ACCESS_KEY         S3 access key; without it boto3's standard chain decides
SEGMENTS_S3_SECRET_KEY         S3 secret key
SEGMENTS_S3_SESSION_TOKEN      S3 session token
SEGMENTS_S3_ENDPOINT_URL       URL of an S3 server other than AWS
SEGMENTS_S3_REGION             S3 region
SEGMENTS_FILE_MODE             permissions of objects in a file system, in octal digits; 640 by default
SEGMENTS_TIERED_URI            where old segments are offloaded to, as ``s3://bucket/prefix``; without it, nowhere
SEGMENTS_TIERED_S3_...         as ``SEGMENTS_S3_...``, for that store; when none of them is set, it is opened with those
                               of the primary one, and else with these only
SEGMENTS_ZK_USERNAME           ZooKeeper user
SEGMENTS_ZK_PASSWORD           ZooKeeper password
SEGMENTS_ZK_AUTH               how ZooKeeper knows the user: ``digest`` (default) or ``sasl`` (DIGEST-MD5)
SEGMENTS_ZK_USE_SSL            ``true`` for TLS; then also ``SEGMENTS_ZK_VERIFY_CERTS`` and the PEM files
                               ``SEGMENTS_ZK_CA``, ``_CERTFILE``, ``_KEYFILE``, ``_KEYFILE_PASSWORD``
SEGMENTS_INPUT                 what a build job reads: paths, a table's name or a query
SEGMENTS_INPUT_OPTIONS         options of that source, as a JSON object
SEGMENTS_SPARK_CONF            Spark settings that hold secrets, as a JSON object
============================== =====================================================================
"""

from __future__ import annotations

DEFAULT_CLUSTER = "segments"
"""The cluster, when nobody names one."""

STORAGE_VARIABLES = {
    "access_key": "SEGMENTS_S3_ACCESS_KEY",
    "secret_key": "SEGMENTS_S3_SECRET_KEY",
    "session_token": "SEGMENTS_S3_SESSION_TOKEN",
    "endpoint_url": "SEGMENTS_S3_ENDPOINT_URL",
    "region": "SEGMENTS_S3_REGION",
}
FILE_MODE_VARIABLE = "SEGMENTS_FILE_MODE"
INPUT_VARIABLE = "SEGMENTS_INPUT"
INPUT_OPTIONS_VARIABLE = "SEGMENTS_INPUT_OPTIONS"
SPARK_CONF_VARIABLE = "SEGMENTS_SPARK_CONF"
TIERED_URI_VARIABLE = "SEGMENTS_TIERED_URI"
TIERED_VARIABLES = {
    option: name.replace("SEGMENTS_S3_", "SEGMENTS_TIERED_S3_") for option, name in STORAGE_VARIABLES.items()
}
ZOOKEEPER_VARIABLES = {
    "username": "SEGMENTS_ZK_USERNAME",
    "password": "SEGMENTS_ZK_PASSWORD",
    "auth": "SEGMENTS_ZK_AUTH",
    "ca": "SEGMENTS_ZK_CA",
    "certfile": "SEGMENTS_ZK_CERTFILE",
    "keyfile": "SEGMENTS_ZK_KEYFILE",
    "keyfile_password": "SEGMENTS_ZK_KEYFILE_PASSWORD",
}
ZOOKEEPER_FLAGS = {"use_ssl": "SEGMENTS_ZK_USE_SSL", "verify_certs": "SEGMENTS_ZK_VERIFY_CERTS"}
