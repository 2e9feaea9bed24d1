"""What every application for ``spark-submit`` shares: how the store is named, the session, and how errors end it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.core.model.variables import (
    DEFAULT_CLUSTER,
    INPUT_OPTIONS_VARIABLE,
    INPUT_VARIABLE,
    SPARK_CONF_VARIABLE,
)
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import InvalidConfigError, SegmentsError
from airflow_provider_segments.text import cut, for_message, is_secret_name, mask

CREDENTIALS = (
    "Credentials are read from environment variables only: SEGMENTS_S3_ACCESS_KEY, SEGMENTS_S3_SECRET_KEY, "
    "SEGMENTS_S3_SESSION_TOKEN, SEGMENTS_S3_ENDPOINT_URL, SEGMENTS_S3_REGION, SEGMENTS_ZK_USERNAME, "
    "SEGMENTS_ZK_PASSWORD and, for TLS, SEGMENTS_ZK_USE_SSL with its files. Spark settings that hold secrets are read "
    "from SEGMENTS_SPARK_CONF, a JSON object: every user of a machine can read its command lines."
)
_LOG = logging.getLogger("airflow_provider_segments.spark")
_SEEN = "every user of this machine can read on a command line"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in printable text of at most a screen."""

    def error(self, message: str) -> NoReturn:
        super().error(for_message(message))


def parser(prog: str, description: str) -> Parser:
    """A parser that knows how to name a table of a cluster."""
    made = Parser(prog=prog, description=description, epilog=CREDENTIALS)
    made.add_argument("--zk-hosts", "--zookeeper", required=True, help="host:port,host:port/chroot")
    made.add_argument("--cluster", default=DEFAULT_CLUSTER)
    made.add_argument("--storage-uri", required=True, help="file:///folder or s3://bucket/prefix")
    made.add_argument("--table", required=True)
    return made


def add_input(parser: Parser, *, source: str, formats: str) -> None:
    """Have ``parser`` take an input: what it is (``source``), its format and its options."""
    parser.add_argument("--input", help=f"{source} (or {INPUT_VARIABLE})")
    parser.add_argument("--format", default="parquet", help=formats)
    parser.add_argument(
        "--option",
        action=_Option,
        dest="options",
        default={},
        metavar="KEY=VALUE",
        help=f"an option of the source; those that hold secrets belong into {INPUT_OPTIONS_VARIABLE}, a JSON object",
    )


def parse_with_input(
    parser: Parser, argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ
) -> argparse.Namespace:
    """The arguments, with the input and its options out of the environment where they are there. Exits with code 2 for
    a secret among the arguments: it has been seen already, and the next one must not be."""
    arguments = parser.parse_args(argv)
    if arguments.input is not None and mask(arguments.input) != arguments.input:
        parser.error(f"--input holds a secret, which {_SEEN}; put it into {INPUT_VARIABLE}")
    for key, value in arguments.options.items():
        if is_secret_name(key) or mask(value) != value:
            parser.error(f"--option {key} holds a secret, which {_SEEN}; put it into {INPUT_OPTIONS_VARIABLE}")
    arguments.input = environ.get(INPUT_VARIABLE) or arguments.input
    if not arguments.input:
        parser.error(f"no input: give --input, or set {INPUT_VARIABLE}")
    try:
        arguments.options = {**arguments.options, **json_variable(INPUT_OPTIONS_VARIABLE, environ)}
    except InvalidConfigError as error:
        parser.error(str(error))
    return arguments


class _Option(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, flag: Any = None
    ) -> None:
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            parser.error(f"{flag} {key[:40]!r} is not KEY=VALUE")
        namespace.options = {**namespace.options, key: text}


def json_variable(name: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The JSON object in an environment variable; empty when it is not set. Raises :class:`InvalidConfigError`, which
    does not show what it holds."""
    try:
        found = json.loads(environ.get(name) or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidConfigError(f"environment variable {name} must hold a JSON object")
    return {str(key): str(value) for key, value in found.items()}


def run(name: str, arguments: argparse.Namespace, work: Callable[[SparkSession, Table], int]) -> int:
    """Call ``work`` with a session and the table; returns its exit code, or 1 for an error.

    Times without a zone are UTC's, also for a source that reads them as instants.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        builder = SparkSession.builder.appName(f"{name} {arguments.table}")
        spark = builder.config(map=dict(json_variable(SPARK_CONF_VARIABLE))).getOrCreate()
    except SegmentsError as error:
        _LOG.error("%s: %s", type(error).__name__, error)
        return 1
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        with connect(arguments.zk_hosts, arguments.storage_uri, arguments.cluster) as store:
            table = store.table(arguments.table)
            table.config()
            return work(spark, table)
    except SegmentsError as error:
        tell_error(error)
        return 1
    except Exception as error:
        _LOG.error("The job failed", exc_info=True)
        tell_error(error)
        return 1
    finally:
        spark.stop()


def tell_error(error: Exception) -> None:
    """Log the error of the job in one record, with what was added to it on the way, as the last one before the end."""
    text = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    _LOG.error("%s", cut(" ".join(text.split())))
