"""The commands, once, for both faces: plain data from which ``main`` makes an argparse parser and ``definition``
Airflow's command objects. Imports nothing but the standard library: every ``airflow`` call loads this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_segments.cli import types

EXIT_CODES = """\
exit codes:
  0  done
  1  refused or failed, nothing was changed by the request that failed; "error: ..." says why
  2  the command line is wrong
  3  the outcome is unknown: the connection broke during a write that may have landed; look before you go on
  4  no ZooKeeper or no storage, or they refused the credentials
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its flags, or the name of a positional one, and what argparse calls its options."""

    flags: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``action`` is the name of its function in :mod:`.actions`, or in another module that is named before
    a colon; ``offline`` ones open no store, and those that ``makes_cluster`` need not find their cluster made."""

    name: str
    help: str
    action: str
    arguments: tuple[Argument, ...] = ()
    description: str | None = None
    offline: bool = False
    makes_cluster: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Commands below a common word."""

    name: str
    help: str
    commands: tuple[Command, ...]


def _argument(*flags: str, **options: Any) -> Argument:
    return Argument(flags, options)


def _flag(*flags: str, help: str) -> Argument:  # noqa: A002 - argparse's word
    return Argument(flags, {"action": "store_true", "help": help})


_TABLE = _argument("table", metavar="TABLE", help="name of the table")
_ENTRY = _argument(
    "entry", metavar="ENTRY", help='lineage entry: its id, the beginning of it (4 characters or more), or "latest"'
)
_RUNNING = _argument(
    "entry",
    metavar="ENTRY",
    help='lineage entry: its id, the beginning of it, or "latest", the push in progress that was started last',
)

COMMON = (
    _flag("--json", help="print JSON for programs"),
    _flag("--debug", help="show the traceback of an error, and what the libraries log"),
)
"""Arguments of every command."""

CONNECTION = (
    _argument("--zookeeper", metavar="HOSTS", help="host:port[,host:port][/chroot] (or SEGMENTS_ZOOKEEPER)"),
    _argument("--cluster", metavar="NAME", help="root znode (or SEGMENTS_CLUSTER; default: segments)"),
    _argument("--storage", metavar="URI", help="file:///folder or s3://bucket/prefix (or SEGMENTS_STORAGE)"),
)
"""Where the store is, for the stand-alone command. Credentials come from the environment only: a command line can be
read by every user of the machine."""

AIRFLOW_CONNECTION = (
    _argument(
        "--conn-id",
        metavar="CONN_ID",
        default="segments_default",
        help="Airflow connection of type segments (default: segments_default)",
    ),
)
"""Where the store is, for ``airflow segments``."""

_TABLES = (
    _argument("tables", metavar="TABLE", nargs="*", help="names of tables"),
    _flag("--all", help="every table of the cluster"),
)
_DEAD = (
    _argument("ids", metavar="ID", nargs="*", help="their ids, or the beginnings of these"),
    _flag("--all", help="all of them"),
)
_NAMES: Mapping[str, Any] = {"metavar": "NAMES", "type": types.names, "action": "append"}

COMMANDS: tuple[Command | Group, ...] = (
    Command("tables", "List the tables", "tables"),
    Command("lineage", "Show which segments replaced which", "lineage", (_TABLE,)),
    Command(
        "snapshot",
        "Show what readers see",
        "snapshot",
        (
            _TABLE,
            _argument("--start", metavar="TIME", type=types.time_ms, help="only from this time on: ISO 8601, UTC"),
            _argument("--end", metavar="TIME", type=types.time_ms, help="only before this time"),
            _argument("--as-of", metavar="ENTRY", help="the table as it was right after this entry was completed"),
            _flag("--files", help="the addresses of the objects, one a line"),
        ),
    ),
    Command(
        "timeline",
        "Show where every registered segment stands",
        "timeline:timeline",
        (
            _TABLE,
            _argument("--start", metavar="TIME", type=types.time_ms, help="only from this time on: ISO 8601, UTC"),
            _argument("--end", metavar="TIME", type=types.time_ms, help="only before this time"),
            _argument("--svg", metavar="FILE", help="also draw a picture, for any browser"),
        ),
        "Show the segments of each time chunk and version: visible, standby (staged, or waiting for the rest of their "
        "atomic group), or overshadowed (replaced, and kept for a rollback).",
    ),
    Command(
        "start",
        "Announce a replacement",
        "start",
        (
            _TABLE,
            _argument("--from", dest="from_names", **_NAMES, help="segments to replace, joined by commas; repeatable"),
            _flag("--from-all", help="replace everything visible"),
            _flag("--from-none", help="replace nothing: an append"),
            _argument("--to", dest="to_names", **_NAMES, help="names of the new segments, if they are known already"),
            _argument("--identity", metavar="TEXT", help="name of the work: the same one finds its own entry again"),
            _flag("--force", help="revert pushes in progress that are in the way"),
        ),
        "Announce a replacement. Without --from..., a REFRESH table is replaced whole and an APPEND table appended to.",
    ),
    Command(
        "stage",
        "Put Parquet files into a push, still hidden",
        "stage",
        (
            _TABLE,
            _RUNNING,
            _argument("paths", metavar="FILE", nargs="+", help="Parquet file, one becomes one segment"),
            _argument("--chunk", metavar="CHUNK", help="time chunk of all files, as in 2013-01-31 or ALL"),
            _argument("--stager", metavar="NAME", default="files", help="who stages: one stager's newest try counts"),
        ),
        "Upload Parquet files and register them, hidden until the entry ends. Rows and times are read from the "
        "footers; each file must lie in one time chunk of the table.",
    ),
    Command(
        "end",
        "Switch readers to a push's segments",
        "end",
        (
            _TABLE,
            _RUNNING,
            _argument("--to", dest="to_names", **_NAMES, help="only these staged segments; the rest is deleted"),
            _flag("--allow-empty", help="end a push without segments: remove what it replaces"),
        ),
    ),
    Command(
        "revert",
        "Roll a replacement back",
        "revert",
        (
            _TABLE,
            _ENTRY,
            _flag("--dry-run", help="show what would change for readers, change nothing"),
            _flag("--force", help="also abort a push in progress"),
            _flag("--allow-empty", help="even if the table is left without visible rows"),
            _flag("--yes", help="do not ask when latest stands behind a push that is rolled back already"),
            _argument("--identity", metavar="TEXT", help="name of the work: a retry of it succeeds"),
        ),
        "Roll a replacement back: readers see again what it replaced. What was rolled back is kept for the table's "
        "revertedSegmentsRetentionPeriod, and unrevert brings it back.",
    ),
    Command(
        "unrevert",
        "Bring back what was rolled back",
        "unrevert",
        (
            _TABLE,
            _argument(
                "entry",
                metavar="ENTRY",
                help='lineage entry: its id, the beginning of it, or "latest", the one rolled back last',
            ),
            _flag("--dry-run", help="show what would change for readers, change nothing"),
            _flag("--allow-empty", help="even if the table is left without visible rows"),
            _argument("--identity", metavar="TEXT", help="name of the work: a retry of it succeeds"),
        ),
        "Bring back what was rolled back, into its old place. Refused once its segments are being deleted, and when "
        "something was built since upon what it replaced.",
    ),
    Command(
        "delete-time",
        "Take the rows of a stretch of time out of sight",
        "removal:delete_time",
        (
            _TABLE,
            _argument(
                "--start", metavar="TIME", type=types.time_ms, required=True, help="from this time on: ISO 8601, UTC"
            ),
            _argument("--end", metavar="TIME", type=types.time_ms, required=True, help="before this time"),
            _flag("--dry-run", help="show how many segments have rows there, change nothing"),
            _argument("--identity", metavar="TEXT", help="name of the work: a retry of it succeeds"),
        ),
        "Overwrite a stretch of time with nothing, under an EXCLUSIVE lock. The table needs segmentLocking. "
        "Reverting the entry that this makes brings the rows back.",
    ),
    Command(
        "drop-table",
        "Take a table out of sight, and then away",
        "removal:drop_table",
        (
            _TABLE,
            _flag("--dry-run", help="show what would be hidden, change nothing"),
            _flag("--yes", help="really do it"),
            _argument("--identity", metavar="TEXT", help="name of the work: a retry of it succeeds"),
        ),
        "Hide everything in a table by one switch, and refuse new pushes. Reverting the entry that this makes brings "
        "it back until replacedSegmentsRetentionPeriod is over; then retention and drain remove the rest.",
    ),
    Command(
        "retention",
        "Let go of what is past its time: one pass of all that the configs say",
        "deletion:retention",
        (*_TABLES, _flag("--dry-run", help="show what would go and why, change nothing")),
        "Mark replaced and reverted segments, abort pushes that nobody ends, expire old time chunks. Nothing is "
        "deleted by this: drain does that.",
    ),
    Command(
        "mark",
        "Mark leftover segments for deletion",
        "deletion:mark",
        (
            _TABLE,
            _argument("segments", metavar="SEGMENT", nargs="*", help="names of segments"),
            _argument("--entry", metavar="ENTRY", help="all that this reverted or vanished entry has left"),
        ),
        "Mark segments that nothing shows and no live lineage entry holds; anything else is refused.",
    ),
    Command(
        "deletions",
        "Show what waits to be deleted",
        "deletion:deletions",
        (_flag("--watch", help="look every two seconds until nothing is in flight"),),
    ),
    Command(
        "drain",
        "Delete what is marked and due",
        "deletion:drain",
        (
            _argument("--max-seconds", metavar="N", type=types.seconds, help="work no longer than this"),
            _argument("--max-ledgers", metavar="N", type=types.whole, help="work on no more messages than about this"),
        ),
        "Be a consumer of the deletion queue until nothing is due. Any number may work at once.",
    ),
    Group(
        "dead-letters",
        "Deletions that were given up",
        (
            Command("list", "Show them, with their last error", "deletion:dead_list"),
            Command("redrive", "Enqueue them anew, after the repair", "deletion:dead_redrive", _DEAD),
            Command("purge", "Forget them; their objects stay", "deletion:dead_purge", _DEAD),
        ),
    ),
    Command(
        "offload",
        "Copy old segments to tiered storage",
        "deletion:offload",
        (
            *_TABLES,
            _argument("--older-than", metavar="PERIOD", type=types.period, required=True, help="age, as in 30d or 12h"),
            _argument(
                "--primary-lag",
                metavar="PERIOD",
                type=types.period,
                default="1d",
                help="how long both copies stay after that (default: 1d)",
            ),
            _argument("--max-segments", metavar="N", type=types.whole, help="copy no more than this, a table"),
        ),
        "Copy and verify segments that ended long enough ago; mark primary copies whose offload is old enough.",
    ),
    Command(
        "reconcile",
        "Compare storage with what is registered, queued and given up",
        "deletion:reconcile",
        (
            *_TABLES,
            _argument(
                "--grace",
                metavar="PERIOD",
                type=types.period,
                default="1d",
                help="leave objects alone that are younger (default: 1d)",
            ),
            _flag("--enqueue", help="queue what nothing refers to for deletion"),
        ),
        "Look for objects that nothing refers to, and for segments without an object. Deletes nothing.",
    ),
    Command(
        "log",
        "Show who started, ended, reverted or dropped what, and when",
        "access:log",
        (
            _TABLE,
            _argument("--limit", metavar="N", type=types.whole, default=50, help="the newest N events (default: 50)"),
        ),
    ),
    Command(
        "leases",
        "Show who reads what, which deletions wait for",
        "deletion:leases",
        (_argument("tables", metavar="TABLE", nargs="*", help="names of tables; none: all"),),
    ),
    Command(
        "doctor",
        "Look at the whole cluster, and say what is wrong",
        "doctor:doctor",
        (
            _flag("--all", help="look at every registered object, not at some of each table"),
            _flag("--keep", help="keep the report in ZooKeeper as the last one, for Airflow's page of segments"),
        ),
        "Read every znode and some objects of each table: what is unreadable, inconsistent or foreign; and look at "
        "Java, the Spark packages and Airflow's DAGs. Changes nothing, but for the report with --keep. The exit code "
        "is 10 with warnings and 11 with errors.",
    ),
    Group(
        "storage",
        "Which object stores the cluster keeps its objects in",
        (
            Command("show", "Show the stores that the cluster is bound to", "storage:show"),
            Command(
                "rebind",
                "Bind the cluster to the store of the command line, after a deliberate move",
                "storage:rebind",
                (
                    _flag("--tiered", help="the tiered store (SEGMENTS_TIERED_URI) instead of the primary one"),
                    _flag("--force", help="also where registered objects are not found"),
                ),
                "Say that the objects were moved: from now on they are in the store that --storage or the connection "
                "names. Copy all objects first; some of every table are looked for.",
            ),
        ),
    ),
    Group(
        "upsert",
        "Versions and marks of an upsert table",
        (
            Command("status", "Show versions, marks, positions and dead rows", "upsert:upsert_status", (_TABLE,)),
            Command(
                "rollback",
                "Take back all versions after one, and the source positions that belong to them",
                "upsert:upsert_rollback",
                (
                    _TABLE,
                    _argument(
                        "--to", metavar="VERSION", type=types.version, required=True, help="the version to show again"
                    ),
                ),
            ),
            Command(
                "cutoff",
                "End all rows that are older, and take no such events any more",
                "upsert:upsert_cutoff",
                (
                    _TABLE,
                    _argument(
                        "value",
                        metavar="VALUE",
                        type=types.comparison_value,
                        help="of the comparison column: a number; of a time, microseconds since 1970; of a date, days",
                    ),
                ),
            ),
            Command(
                "forget",
                "Take a reader with a copy out that will not report again",
                "upsert:upsert_forget",
                (_TABLE, _argument("reader", metavar="READER", help="as the status names it")),
                "Take a reader out that will not report again: until then it holds back the mark at which all readers "
                "with copies can answer.",
            ),
            Command(
                "compact",
                "Merge small segments and update logs, and drop rows that no mark shows",
                "upsert:upsert_compact",
                (
                    _TABLE,
                    _argument(
                        "--floor", metavar="VERSION", type=types.version, help="give up marks below this one first"
                    ),
                ),
            ),
        ),
    ),
    Command(
        "heartbeats",
        "Show when each region of an upsert table was last heard",
        "replication:heartbeats",
        (_TABLE,),
        "Show when each region of an upsert table was last heard. The lag grows with the clock as long as no heartbeat "
        "comes, also when ingestion is what has ended.",
    ),
    Command(
        "repair",
        "Write rows to their sources again that another region lacks or has altered",
        "replication:repair",
        (
            _TABLE,
            _argument(
                "--source",
                metavar="REGION=PLACE",
                action="append",
                type=types.source,
                default=[],
                help="where a region's events arrive: a folder of Parquet files, or kafka:TOPIC; once for each region",
            ),
            _argument("--kafka-settings", metavar="FILE", help="settings of the Kafka client, a JSON object"),
            _argument("--findings", metavar="TABLE", help="the table of findings (default: <TABLE>_findings)"),
            _flag("--apply", help="write them; without it, only say what would be written"),
        ),
        "Write rows of this region's table to their sources again, as events at later offsets: those of keys that a "
        "comparison found to be missing or different in the other region. Nobody else may add files to a folder "
        "meanwhile. Both regions ingest the events, and the next comparison says healed.",
    ),
    Command(
        "checkpoint",
        "Show the version that holds exactly what a region had written up to a time",
        "replication:checkpoint",
        (
            _TABLE,
            _argument("time", metavar="TIME", type=types.time_ms, help="ISO 8601, UTC when it names no zone"),
            _argument("--region", metavar="REGION", required=True, help="one of upsertConfig.regions"),
        ),
    ),
    Group(
        "locks",
        "Who holds which time chunks and segments",
        (
            Command("list", "Show the locks of a table, revoked ones too", "locks:lock_list", (_TABLE,)),
            Command(
                "revoke",
                "Take a lock away from its owner",
                "locks:lock_revoke",
                (
                    _TABLE,
                    _argument("lock", metavar="LOCK", help="its id, or the beginning of it (4 characters or more)"),
                ),
                "Take a lock away from its owner, whose push then fails, changes nothing, and says who did it.",
            ),
            Command(
                "release",
                "Release the locks of a group that will not do it itself",
                "locks:lock_release",
                (
                    _TABLE,
                    _argument("--group", metavar="GROUP", required=True, help="whose locks, as locks list shows it"),
                    _argument("--task", metavar="TASK", help="only this task of the group"),
                ),
                "Release what a group, or one task of it, holds. If it still works, it can no longer publish.",
            ),
        ),
    ),
    Group(
        "config",
        "Table configs",
        (
            Command(
                "apply",
                "Make or change a table",
                "config_apply",
                (_argument("file", metavar="FILE", help="table config as JSON; - reads standard input"),),
                makes_cluster=True,
            ),
            Command("show", "Print a table's config as JSON", "config_show", (_TABLE,)),
        ),
    ),
    Group(
        "acl",
        "Who may do what: the roles of a cluster",
        (
            Command(
                "check",
                "Compare the permissions of every znode with the roles",
                "access:acl_check",
                description="Look at the permissions of every znode, and change nothing. Exit code 1 when anyone at "
                "all may change something, or when they differ from what the roles say.",
            ),
            Command(
                "apply",
                "Shut a cluster: set the roles, and the permissions of every znode",
                "access:acl_apply",
                (
                    _argument("--reader", metavar="ID", action="append", help="may read, and hold leases; repeatable"),
                    _argument("--writer", metavar="ID", action="append", help="may push, and take locks; repeatable"),
                    _argument("--operator", metavar="ID", action="append", help="may do everything; repeatable"),
                ),
                "Identities are digest:USER:HASH (see acl id), sasl:USER or x509:SUBJECT. Without any, the roles stay "
                "as they are, and znodes that others have made get their permissions.",
            ),
            Command(
                "id",
                "Print the identity of a user and a password of the digest scheme",
                "access:acl_id",
                (_argument("user", metavar="USER", help="name of the user; the password is read from standard input"),),
                offline=True,
            ),
        ),
    ),
    Group(
        "dags",
        "The DAGs that come with the package",
        (
            Command("path", "Print the folder they are in", "dags:dags_path", offline=True),
            Command(
                "install",
                "Copy them to Airflow's DAGs folder",
                "dags:dags_install",
                (
                    _argument("folder", metavar="FOLDER", help="where to; made when it is missing"),
                    _flag("--force", help="replace those that somebody has changed"),
                ),
                "Airflow shows new DAGs paused, so none of them runs before it is unpaused. What somebody has changed "
                "is left as it is.",
                offline=True,
            ),
        ),
    ),
    Group(
        "dev",
        "For development, not for production",
        (
            Command(
                "zookeeper",
                "Run the embedded ZooKeeper in the foreground",
                "dev_zookeeper",
                (
                    _argument(
                        "--data-dir",
                        metavar="FOLDER",
                        help="its data; survives a restart (default: ~/.local/state/segments/zookeeper)",
                    ),
                    _argument("--port", metavar="PORT", type=types.port, default=2181, help="default: 2181"),
                ),
                offline=True,
            ),
        ),
    ),
)


def arguments_of(command: Command, connection: Iterable[Argument]) -> list[Argument]:
    """All arguments of ``command`` in a face whose stores are found by ``connection``."""
    return [*command.arguments, *(() if command.offline else connection), *COMMON]
