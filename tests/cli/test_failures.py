"""Exit codes, messages, terminals and pipes."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import airflow_provider_segments
from airflow_provider_segments.cli.commands import COMMANDS, CONNECTION, Argument, Command, Group, arguments_of
from airflow_provider_segments.cli.main import main
from airflow_provider_segments.cli.output import Cell, Output, age, size
from airflow_provider_segments.cli.run import exit_code
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import free_port
from airflow_provider_segments.exceptions import InvalidConfigError, OutcomeUnknownError
from airflow_provider_segments.text import count
from tests.cli.conftest import DAILY, CommandLine, said_to

COMMAND = [sys.executable, "-m", "airflow_provider_segments.cli.main"]


def test_refusal_is_one_line_and_exit_code_1(segments: CommandLine) -> None:
    segments.make_table(**DAILY)
    entry = segments.push(1)
    segments.ok("revert", "t", entry, "--allow-empty")
    refused = segments("revert", "t", entry)
    assert (refused.code, refused.out) == (1, "")
    assert (
        refused.err
        == f"error: table 't', entry {entry}: revert refused: the entry is REVERTED already [already-reverted]\n"
    )
    assert "[reverted]" in segments("end", "t", entry).err
    assert "Traceback" in segments("revert", "t", entry, "--debug").err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["lineage", "absent"], "table 'absent' has no config"),
        (["snapshot", "absent"], "table 'absent' has no config"),
        (["lineage", "a/b"], "is not allowed"),
        (["end", "t", "0000"], "no lineage entry is called '0000'"),
        (["revert", "t", "latest"], "no completed replacement"),
        (["start", "t", "--from", "s"], "[from-not-visible]"),
        (["start", "t", "--to", "s,s"], "given twice"),
        (["config", "apply", "absent.json"], "cannot read absent.json"),
        (["config", "apply", __file__], "is not JSON"),
    ],
)
def test_what_must_be_refused_is(segments: CommandLine, args: list[str], says: str) -> None:
    segments.make_table()
    refused = segments(*args)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: ")
    assert says in refused.err
    assert segments.json("lineage", "t")["entries"] == []


def test_empty_end_needs_to_be_allowed(segments: CommandLine) -> None:
    segments.make_table()
    entry = segments.json("start", "t")["entry_id"]
    assert "[nothing-staged]" in segments("end", "t", entry).err
    assert segments.json("end", "t", entry, "--allow-empty")["segments_to"] == []


@pytest.mark.parametrize("args", [[], ["nonsense"], ["lineage"], ["snapshot", "t", "--start", "yesterday"], ["dev"]])
def test_wrong_command_line_is_exit_code_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    assert left.value.code == 2
    assert "usage: segments" in capsys.readouterr().err


def test_store_must_be_named(segments: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEGMENTS_STORAGE")
    refused = segments("tables")
    assert refused.code == 2
    assert "SEGMENTS_STORAGE" in refused.err
    assert segments("tables", "--storage", "ftp://x").code == 1


def test_no_zookeeper_is_exit_code_4(segments: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_segments.core.environment.ZooKeeperSettings", _impatient)
    nobody = segments("tables", "--zookeeper", f"127.0.0.1:{free_port()}")
    assert (nobody.code, nobody.out) == (4, "")
    assert nobody.err.startswith("error: ZooKeeper at 127.0.0.1:")
    assert nobody.err.count("\n") == 1


def _impatient(hosts: str) -> object:
    from airflow_provider_segments.core.zookeeper import ZooKeeperSettings

    return ZooKeeperSettings(hosts=hosts, connect_timeout=0.5)


def test_unknown_outcome_has_a_code_of_its_own() -> None:
    """A script must be able to tell "may have happened" from "was refused"."""
    assert exit_code(OutcomeUnknownError("?")) == 3


def test_help_tells_exit_codes_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--help"], ["revert", "--help"]):
        with pytest.raises(SystemExit) as left:
            main(args)
        assert left.value.code == 0
        assert "outcome is unknown" in capsys.readouterr().out


def test_reader_that_leaves_early_is_no_error(segments: CommandLine) -> None:
    segments.make_table(**DAILY)
    segments.push(*range(1, 4))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "snapshot", "t", "--files"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals(no_color: str, coloured: bool) -> None:
    leader, follower = pty.openpty()
    with open(follower, "w") as terminal:
        out = Output(as_json=False, stream=terminal, environ={"TERM": "xterm", "NO_COLOR": no_color})
        out.table(["STATE"], [[Cell("REVERTED", "red")]])
    assert (b"\x1b[31mREVERTED\x1b[0m" in said_to(leader)) is coloured
    plain = io.StringIO()
    Output(as_json=False, stream=plain, environ={"TERM": "xterm"}).table(["STATE"], [[Cell("REVERTED", "red")]])
    assert plain.getvalue() == "STATE\nREVERTED\n"


def test_sizes_and_ages_are_rounded_for_people() -> None:
    assert [age(ms) for ms in (-5, 59_999, 60_000, 7_200_000, 86_400_000 * 40)] == ["0s", "59s", "1m", "2h", "40d"]
    assert [size(count) for count in (0, 1023, 1536, 5 * 1024**4)] == ["0 bytes", "1,023 bytes", "1.5 KiB", "5.0 TiB"]


def test_stand_alone_command_imports_neither_airflow_nor_pyspark_nor_boto3(segments: CommandLine) -> None:
    """A real command runs to its end with all three forbidden."""
    segments.make_table()
    script = (
        "import sys\n"
        "for name in ('airflow', 'pyspark', 'boto3', 'pyarrow'): sys.modules[name] = None\n"
        "from airflow_provider_segments.cli.main import main\n"
        "sys.exit(main(['lineage', 't']) or main(['start', 't', '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "table 't' has no lineage entries\n")


def test_embedded_zookeeper_runs_in_the_foreground_until_it_is_stopped(segments: CommandLine, tmp_path: Path) -> None:
    port = free_port()
    command = [*COMMAND, "dev", "zookeeper", "--data-dir", str(tmp_path / "zk"), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(f"ZooKeeper at 127.0.0.1:{port}, data in ")
        assert "Clusters like it: none" in segments("tables", "--zookeeper", f"127.0.0.1:{port}").err
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0


def test_embedded_zookeeper_that_dies_is_exit_code_4(tmp_path: Path) -> None:
    command = [*COMMAND, "dev", "zookeeper", "--data-dir", str(tmp_path), "--port", str(free_port()), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        text = ""
        while not text.endswith("}\n"):
            text += server.stdout.readline()
        os.kill(json.loads(text)["pid"], signal.SIGKILL)
        assert server.wait(timeout=20) == 4
        assert "the embedded ZooKeeper has ended by itself" in json.loads(server.stderr.read())["error"]["message"]


def test_command_loads_none_of_what_it_does_not_need(segments: CommandLine) -> None:
    """So it starts at once."""
    segments.make_table()
    script = (
        "import sys\nfrom airflow_provider_segments.cli.main import main\nmain(['lineage', 't'])\nprint(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    core = {
        name.split(".")[2]
        for name in loaded
        if name.startswith("airflow_provider_segments.core.") and name.count(".") > 2
    }
    assert "lineage" in core
    assert core.isdisjoint({"deletion", "retention", "tiering", "compaction", "doctor"}), core
    assert {"airflow", "pyspark", "pyarrow", "duckdb", "boto3"}.isdisjoint(loaded)


@pytest.mark.parametrize("module", ["argparse", "msgspec", "kazoo.client", "airflow_provider_segments.core.table"])
def test_interrupt_while_modules_load_is_a_clean_exit(segments: CommandLine, module: str) -> None:
    """Ctrl-C in the first half second used to print the traceback of an import."""
    segments.make_table()
    script = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from airflow_provider_segments.cli.main import main\n"
        "sys.exit(main(['lineage', 't']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    "args",
    [
        ("drain", "--max-seconds", "nan"),
        ("drain", "--max-seconds", "-1"),
        ("drain", "--max-seconds", "inf"),
        ("drain", "--max-seconds", "soon"),
        ("drain", "--max-ledgers", "-5"),
        ("drain", "--max-ledgers", "0"),
        ("drain", "--max-ledgers", "\u0663"),
        ("offload", "t", "--older-than", "1d", "--max-segments", "-1"),
        ("offload", "t", "--older-than", "-1d"),
        ("dev", "zookeeper", "--port", "0"),
        ("dev", "zookeeper", "--port", "65536"),
        ("dev", "zookeeper", "--port", "-2181"),
    ],
)
def test_limit_that_makes_no_sense_is_refused(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A limit of NaN used to mean none."""
    with pytest.raises(SystemExit) as left:
        main(list(args))
    assert left.value.code == 2
    assert "error: argument --" in capsys.readouterr().err


def test_limit_that_makes_no_sense_is_refused_by_the_api(store: SegmentStore) -> None:
    for limits in ({"max_seconds": float("nan")}, {"max_seconds": -1.0}, {"max_ledgers": -1}):
        with pytest.raises(InvalidConfigError, match="must be"):
            store.deleter().drain(**limits)  # type: ignore[arg-type]


def test_errors_are_json_where_json_was_asked_for(segments: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    segments.make_table(**DAILY)
    entry = segments.push(1)
    refused = segments("revert", "t", entry, "--json")
    assert (refused.code, refused.out) == (1, "")
    error = json.loads(refused.err)["error"]
    assert (error["type"], error["rule"], error["table"], error["entry_id"], error["exit_code"]) == (
        "RevertRefusedError", "would-be-empty", "t", entry, 1,
    )  # fmt: skip
    assert "--allow-empty" in error["hint"]
    assert error["message"].startswith("table 't', entry")
    assert json.loads(segments("snapshot", "absent", "--json").err)["error"]["type"] == "TableNotFoundError"
    assert json.loads(segments("start", "t", "--from-all", "--from-none", "--json").err)["error"]["exit_code"] == 2
    with pytest.raises(SystemExit) as left:
        main(["lineage", "--json"])
    assert left.value.code == 2
    assert json.loads(capsys.readouterr().err)["error"] == {
        "type": "UsageError",
        "message": "the following arguments are required: TABLE",
        "exit_code": 2,
    }


def test_remarks_for_people_do_not_disturb_json(segments: CommandLine) -> None:
    segments.make_table()
    assert segments.json("lineage", "t")["entries"] == []


def test_embedded_zookeeper_has_a_folder_of_its_own_and_says_which_port_is_taken(tmp_path: Path) -> None:
    """As the README writes it, without a folder."""
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [*COMMAND, "dev", "zookeeper", "--port", str(port)]
        refused = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        assert refused.returncode == 1
        assert f"port {port} of 127.0.0.1 is taken" in refused.stderr
        assert "--port" in refused.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        server.send_signal(signal.SIGINT)
        try:
            code = server.wait(timeout=120)
        finally:
            server.kill()
    assert f"data in {tmp_path}/segments/zookeeper;" in said
    assert code == 0


def test_texts_name_flags_that_exist() -> None:
    """Every ``--flag`` in a message of the core is a flag of some command."""
    package = Path(airflow_provider_segments.__file__).parent
    flags = {flag for argument in all_arguments(COMMANDS) for flag in argument.flags}
    said = {
        flag
        for file in (package / "core").rglob("*.py")
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", file.read_text())
    }
    assert {"--force", "--allow-empty"} <= said <= flags, said - flags
    for file in (package / "core").rglob("*.py"):
        assert not re.search(r"\"[^\"]*\b(with|Force the)\b force[_.]", file.read_text()), file


def all_arguments(commands: Iterable[Command | Group]) -> Iterator[Argument]:
    """Arguments of all commands, those in groups too."""
    for command in commands:
        if isinstance(command, Group):
            yield from all_arguments(command.commands)
        else:
            yield from arguments_of(command, CONNECTION)


def test_singulars_are_singular() -> None:
    assert [count(number, "segment") for number in (0, 1, 2, 2000)] == [
        "0 segments", "1 segment", "2 segments", "2,000 segments",
    ]  # fmt: skip
    assert [count(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]
