"""The ``segments`` command, for places without Airflow. Loads nothing before :func:`main` can be interrupted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` defaults to the process's arguments."""
    try:
        from airflow_provider_segments.cli.parser import make_parser, open_store
        from airflow_provider_segments.cli.run import run

        given = sys.argv[1:] if argv is None else argv
        args = make_parser(as_json="--json" in given).parse_args(given)
        return run(args.command, args, open_store)
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
