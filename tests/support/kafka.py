"""A real Kafka broker (KRaft, one node) for a test, in a folder of its own."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_segments.dev.zookeeper import free_port
from tests.support.processes import ServerProcess

REPOSITORY = Path(__file__).parents[2]
JARS = REPOSITORY / ".kafka"
_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def spark_jars() -> list[str]:
    """Spark's Kafka source, for ``--jars``."""
    return [str(path) for path in sorted((JARS / "spark").glob("*.jar"))]


class KafkaServer(ServerProcess):
    """One broker. Use it in a ``with``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.controller = free_port(), free_port()

    @property
    def servers(self) -> str:
        """What a client connects to."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[bytes]:
        """Format its folder, and start it; :meth:`make_topic` waits for it."""
        subprocess.run([str(REPOSITORY / "scripts" / "kafka-jars")], check=True)
        config = self.folder / "server.properties"
        config.write_text(_CONFIG.format(port=self.port, controller=self.controller, data=self.folder / "data"))
        cluster = base64.b64encode(uuid.uuid4().bytes, b"AB").decode().rstrip("=")  # no dash: it would be an option
        self._tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
        with (self.folder / "kafka.log").open("ab") as log:
            return subprocess.Popen(
                [*self._java("kafka.Kafka"), str(config)],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def make_topic(self, topic: str, partitions: int) -> None:
        """Make a topic; waits for the broker."""
        until = time.monotonic() + 120
        command = ["--bootstrap-server", self.servers, "--create", "--if-not-exists", "--topic", topic]
        while True:
            try:
                self._tool("org.apache.kafka.tools.TopicCommand", *command, "--partitions", str(partitions))
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > until:
                    raise

    def send(self, topic: str, messages: Iterable[tuple[str, str]]) -> None:
        """Send pairs of key and value; one key always goes to one partition."""
        text = "".join(f"{key}|{value}\n" for key, value in messages)
        properties = ["--property", "parse.key=true", "--property", "key.separator=|"]
        command = ["--bootstrap-server", self.servers, "--topic", topic, *properties]
        self._tool("org.apache.kafka.tools.ConsoleProducer", *command, text=text)

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self.process is not None
        return self.process.pid

    @contextmanager
    def producer(self, topic: str) -> Iterator[subprocess.Popen[str]]:
        """A producer that sends each line of its standard input, ``key|value``. At the end all of them are sent."""
        properties = ["--property", "parse.key=true", "--property", "key.separator=|"]
        settings = ["--producer-property", "linger.ms=50", "--producer-property", "batch.size=200000"]
        command = ["--bootstrap-server", self.servers, "--topic", topic, *properties, *settings]
        with (self.folder / "producer.log").open("ab") as log:
            process = subprocess.Popen(
                [*self._java("org.apache.kafka.tools.ConsoleProducer"), *command],
                cwd=self.folder, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(120)

    def _tool(self, main: str, *arguments: str, text: str = "") -> None:
        subprocess.run(
            [*self._java(main), *arguments], cwd=self.folder, input=text, text=True, capture_output=True, check=True,
            timeout=120,
        )  # fmt: skip

    def _java(self, main: str) -> list[str]:
        return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/broker/*", main]
