"""The services of ``docker/compose.yaml``, as commands and environments of processes.

A container has a network, a file system and users of its own; a process has a folder and an address of the loopback
network. :data:`PLACES` and :func:`Topology.services` are all that is replaced. Whatever the compose file comes to say
that is not known here is refused, so that the two cannot drift apart.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_segments.spark.environment import spark_home

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "docker"
PLACES = {
    "/opt/segments/share/airflow-provider-segments/dags": str(ROOT / "dags"),
    "/opt/segments/lib/python3.11/site-packages/pyspark": str(spark_home()),
    "/opt/segments/bin/python3": sys.executable,
    "/opt/segments/jars/s3a": str(ROOT / ".s3a" / "jars"),
    "/opt/segments/jars/kafka": str(ROOT / ".kafka" / "spark"),
}
"""Where an image keeps something, and where it is in a checkout."""

IMAGES = frozenset({"segments-spark", "segments-airflow", "segments-s3", "kafka", "postgres", "redis"})
_MEANT = frozenset({"command", "depends_on", "environment", "healthcheck", "hostname", "image", "secrets", "volumes"})
_OF_CONTAINERS = frozenset(
    {"build", "deploy", "init", "logging", "ports", "restart", "security_opt", "stop_grace_period"}
)
_CONTAINER_PATH = r"/(?:run|data|var|etc|opt|home)\b[\w./-]*"


class UnknownSettingError(ValueError):
    """The compose file says something that the processes would not do."""


@dataclass(frozen=True, slots=True)
class Service:
    """One process. ``files`` are to be written before it starts; ``check`` ends with 0 once it is healthy."""

    name: str
    image: str
    host: str
    folder: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[Path, str]
    volumes: tuple[Path, ...]
    check: tuple[str, ...]
    needs: Mapping[str, str]


class Topology:
    """What the compose file says, for processes below ``folder`` with addresses of the loopback network ``network``
    (three numbers, ``127.1.2``)."""

    def __init__(self, folder: Path, network: str, *, compose: str | None = None) -> None:
        self.folder = folder
        self.network = network
        self._compose: dict[str, Any] = yaml.safe_load(compose or (DOCKER / "compose.yaml").read_text())

    @cached_property
    def hosts(self) -> dict[str, str]:
        """Address of each service. ``localhost`` is where the compose file publishes Airflow's API."""
        hosts = {name: f"{self.network}.{number}" for number, name in enumerate(self._compose["services"], start=1)}
        return hosts | {"localhost": hosts["airflow-api-server"]}

    @cached_property
    def services(self) -> dict[str, Service]:
        """Every service, each after those it needs. Raises :class:`UnknownSettingError`."""
        made = {name: self._service(name, said) for name, said in self._compose["services"].items()}
        ordered: dict[str, Service] = {}

        def add(name: str) -> None:
            for needed in made[name].needs:
                add(needed)
            ordered[name] = made[name]

        for name in made:
            add(name)
        return ordered

    def with_addresses(self, text: str) -> str:
        """``text`` with the address of each service in place of its name."""
        plain = "|".join(name for name in self.hosts if "-" not in name)
        compound = "|".join(name for name in self.hosts if "-" in name)
        pattern = rf"(?<![\w.-])(?:(?:{plain})(?=:\d)|(?:{compound})(?![\w.-]))"
        return re.sub(pattern, lambda match: self.hosts[match[0]], text)

    @property
    def secrets(self) -> Path:
        """The folder that ``docker/make-secrets`` fills."""
        return self.folder / "secrets"

    def _service(self, name: str, said: Mapping[str, Any]) -> Service:
        if unknown := set(said) - _MEANT - _OF_CONTAINERS:
            raise UnknownSettingError(f"service {name}: nobody has said what {sorted(unknown)} means for a process")
        image = said["image"].rpartition("/")[2].partition(":")[0]
        if image not in IMAGES:
            raise UnknownSettingError(f"service {name}: nobody has said how to run the image {said['image']}")
        folder = self.folder / name
        mounts = {path: source for source, path in (text.split(":")[:2] for text in said.get("volumes", ()))}
        contents = {path: (DOCKER / source).read_text() for path, source in mounts.items() if source.startswith("./")}
        files = {path: folder / Path(path).name for path in contents}
        volumes = {path: self.folder / "volumes" / name for path, name in mounts.items() if path not in files}
        own = {path: str(place) for path, place in {**volumes, **files}.items()}
        own |= {str(Path(path).parent): str(folder) for path in files}
        places = {**PLACES, **own, "/run/secrets": str(self.secrets), "/home/segments": str(folder)}

        def local(text: object) -> str:
            return _replace(self.with_addresses(str(text)), places, name).replace("$$", "$")

        environment = {**_image_environment(image), **said.get("environment", {})}
        return Service(
            name=name,
            image=image,
            host=self.hosts[name],
            folder=folder,
            command=tuple(local(part) for part in _words(said.get("command", ()))),
            environment={key: local(value) for key, value in environment.items()} | {"HOSTNAME": self.hosts[name]},
            files={place: local(contents[target]) for target, place in files.items()},
            volumes=tuple(volumes.values()),
            check=tuple(local(part) for part in _check_words(said.get("healthcheck", {}).get("test", ("CMD",)))),
            needs={needed: how["condition"] for needed, how in said.get("depends_on", {}).items()},
        )


def _replace(text: str, places: Mapping[str, str], service: str) -> str:
    """Replace every path of a container. Raises :class:`UnknownSettingError` for one that has no place."""
    known = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))

    def place(match: re.Match[str]) -> str:
        if match[1]:
            return places[match[1]]
        raise UnknownSettingError(f"service {service}: nobody has said where {match[0]} is outside of a container")

    return re.sub(rf"(?<![\w./-])(?:({known})(?![\w-])|{_CONTAINER_PATH})", place, text)


def _words(command: object) -> list[str]:
    return command.split() if isinstance(command, str) else [str(part) for part in command]  # type: ignore[attr-defined]


def _check_words(test: list[str]) -> list[str]:
    kind, *words = test
    return ["sh", "-c", *words] if kind == "CMD-SHELL" else words


def _image_environment(image: str) -> dict[str, str]:
    """What the Dockerfile sets in the target of that name."""
    target = image.removeprefix("segments-")
    stages = re.split(r"^FROM \S+ AS ", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    text = next((stage for stage in stages if stage.splitlines()[0] == target), "")
    lines = re.findall(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return dict(word.split("=", 1) for line in lines for word in line.replace("\\\n", " ").split())
