"""The tutorial, block by block, as somebody would type it: real commands, a real ZooKeeper, a store in a folder."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
PORT = "2181"
START_S = 120
LIMIT_S = 600


@dataclass(frozen=True)
class Block:
    """A block of the page: what it is, what it says, and what it prints, where the page tells."""

    kind: str
    text: str
    printed: str | None
    line: int


def blocks() -> Iterator[Block]:
    """The blocks that are run, each with the ``text`` block that comes right after it."""
    page = PAGE.read_text()
    found = list(re.finditer(r"^```([^\n]+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block[1] == "text":
            continue
        follows = after is not None and after[1] == "text" and not page[block.end() : after.start()].strip()
        printed = after[2] if follows and after is not None else None
        yield Block(block[1], block[2], printed, page.count("\n", 0, block.start()) + 1)


def in_short(printed: str) -> list[str]:
    """What was printed, without what differs each time: ids, moments, sizes, how long it took, and the layout."""
    for pattern, name in (
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ENTRY"),
        (r"_[0-9a-f]{16}_", "_TAG_"),
        (r"0x[0-9a-f]+", "ZXID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "MOMENT"),
        (r"[\d.,]+ ms", "TIME"),
        (r"[\d.,]+( \([\d.]+ KiB\)|( KiB| bytes))", "SIZE"),
        (r"[ \t]+", " "),
    ):
        printed = re.sub(pattern, name, printed)
    return [line.strip() for line in printed.strip().splitlines()]


def free_port() -> int:
    """A port that nobody listens at."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Terminal:
    """Runs blocks in one folder. What a shell block exports and defines, the next ones have, too."""

    def __init__(self, folder: Path, port: int, ends: ExitStack) -> None:
        self.folder, self.port, self.ends = folder, port, ends
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SEGMENTS_")}
        self.environment["PATH"] = path

    def run(self, block: Block) -> str:
        """Run a block to its end; returns what it printed. In the background, wait until it listens."""
        text = re.sub(rf"\b{PORT}\b", str(self.port), block.text)
        if block.kind == "sh background":
            self.start(text)
            return ""
        shell = text if block.kind == "sh" else f"python - <<'PYTHON'\n{text}PYTHON\n"
        script = f"set -euo pipefail\n[ ! -e .state ] || . ./.state\n{shell}\n{{ export -p; declare -f; }} > .state\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, (
            f"{PAGE.name}:{block.line} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def start(self, command: str) -> None:
        """Run a server until the test is over."""
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.ends.callback(server.wait, 60)
        self.ends.callback(server.terminate)
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            assert server.poll() is None, "the server has ended"
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"nobody listens after {START_S} s")


@pytest.mark.timeout(1800)
def test_every_block_of_the_tutorial_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    page = list(blocks())
    assert [block.kind for block in page].count("sh") >= 8
    compared = 0
    with ExitStack() as ends:
        terminal = Terminal(tmp_path, free_port(), ends)
        for block in page:
            printed = terminal.run(block)
            if block.printed is not None:
                assert in_short(printed) == in_short(block.printed), f"{PAGE.name}:{block.line}"
                compared += 1
    assert compared >= 8


def test_every_block_says_what_it_is() -> None:
    """A block of another kind would not be run. The one without a kind installs the package."""
    kinds = re.findall(r"^```(.*)$", PAGE.read_text(), re.MULTILINE)[::2]
    assert set(kinds) == {"", "python", "sh", "sh background", "text"}
    assert kinds.count("") == 1
