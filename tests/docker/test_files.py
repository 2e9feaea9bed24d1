"""The files of ``docker/``, checked without a container engine: syntax, settings, secrets, pins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
REQUIREMENTS = sorted(DOCKER.glob("requirements-*.txt"))
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==(\S+)", re.MULTILINE)


def run(*command: str | Path) -> str:
    """Run a tool of this environment; its output when it has succeeded."""
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``docker/make-secrets`` makes."""
    folder = tmp_path_factory.mktemp("made") / "secrets"
    run(DOCKER / "make-secrets", folder)
    return folder


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file with its anchors resolved."""
    return dict(yaml.safe_load(COMPOSE.read_text()))


def test_the_compose_file_is_valid_against_the_specification() -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)


def test_podman_compose_understands_it() -> None:
    parsed = yaml.safe_load(run("podman-compose", "-f", COMPOSE, "config").split("\n\n")[0])
    assert len(parsed["services"]) == 18
    assert not [name for name, service in parsed["services"].items() if "configs" in service], "it mounts none of them"


def test_the_values_for_the_chart_are_yaml_and_name_what_make_secrets_makes(secrets: Path) -> None:
    values = yaml.safe_load((DOCKER / "kubernetes" / "values.yaml").read_text())
    kept = values["config"]["secrets"]["backend_kwargs"]
    assert Path(json.loads(kept)["connections_file_path"]).name in {path.name for path in secrets.iterdir()}
    assert values["executor"] == "CeleryExecutor"


def test_spark_submit_to_kubernetes_goes_as_far_as_its_server() -> None:
    """It has understood everything, and made the driver's pod of it, before it asks the server."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "KUBERNETES": "https://127.0.0.1:1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [DOCKER / "kubernetes" / "spark-submit", "entry", "flights", "s3a://landing/flights"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "DriverFeatureStep" in done.stderr, done.stderr
    assert "Connection refused: /127.0.0.1:1" in done.stderr, done.stderr
    options = re.findall(r"^    (?:.* )?(--[a-z-]+) ", command[0].read_text().split("local:///")[1], re.MULTILINE)
    known = run(sys.executable, ROOT / "spark_apps" / "build_segments.py", "--help")
    assert options
    assert [option for option in options if option not in known] == []


def test_the_dockerfile_passes_its_linter() -> None:
    run("hadolint", "--config", DOCKER / ".hadolint.yaml", DOCKER / "Dockerfile")


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_images_have_the_versions_of_the_tests(path: Path) -> None:
    """Each with its hashes; where ``requirements.lock`` has the package, the same version."""
    tested = dict(_PIN.findall((ROOT / "requirements.lock").read_text()))
    text = path.read_text()
    pinned = dict(_PIN.findall(text))
    assert pinned
    assert {name: (version, tested.get(name, version)) for name, version in pinned.items()} == {
        name: (version, version) for name, version in pinned.items()
    }
    assert all("--hash=sha256:" in part for part in re.split(_PIN, text)[3::3])


def test_every_setting_of_airflow_exists(compose: dict[str, Any]) -> None:
    """A mistyped one would be read by nobody. Only sensitive ones may come from a command."""
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    ProvidersManager().initialize_providers_configuration()
    known = conf.configuration_description
    given = {name for service in compose["services"].values() for name in service.get("environment", {})}
    settings = {name for name in given if name.startswith("AIRFLOW__")}
    assert len(settings) > 12
    for name in settings:
        section, option = name.removeprefix("AIRFLOW__").lower().split("__")
        plain = option.removesuffix("_cmd")
        if section == "celery":
            continue  # of a provider that only the image has
        assert plain in known[section]["options"], name
        if plain != option:
            assert known[section]["options"][plain].get("sensitive"), name


def test_every_secret_is_made_and_none_is_in_the_file(compose: dict[str, Any], secrets: Path) -> None:
    """A second run keeps them."""
    made = {path.name: path.read_bytes() for path in secrets.iterdir()}
    assert {Path(secret["file"]).name for secret in compose["secrets"].values()} <= set(made)
    used = {name for service in compose["services"].values() for name in service.get("secrets", ())}
    assert used == set(compose["secrets"])
    text = COMPOSE.read_text()
    assert not [name for name, value in made.items() if value.decode() in text]
    assert secrets.stat().st_mode & 0o077 == 0
    run(DOCKER / "make-secrets", secrets)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == made


def test_the_connection_reaches_every_zookeeper_by_tls(
    compose: dict[str, Any], secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the hook reads it; the servers are those of the compose file and of their own configuration."""
    from airflow.secrets.local_filesystem import load_connections_dict

    from airflow_provider_segments.hooks.settings import SegmentsConnection

    settings = SegmentsConnection.parse(
        load_connections_dict(str(secrets / "airflow_connections.json"))["segments_default"]
    )
    names = [name for name in compose["services"] if name.startswith("zookeeper-")]
    assert settings.zk_hosts == ",".join(f"{name}:2281" for name in names)
    assert settings.environment()["SEGMENTS_ZK_USE_SSL"] == "true"
    config = (DOCKER / "zookeeper" / "zoo.cfg").read_text()
    assert re.findall(r"^server\.\d=([^:]+):2888:3888$", config, re.MULTILINE) == names
    assert "\nclientPort=" not in config, "no way in without TLS"


def test_every_service_is_bounded_watched_and_started_again(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
        assert "no-new-privileges:true" in service["security_opt"], name
        if not name.endswith("-init"):
            assert (service["restart"], "test" in service["healthcheck"]) == ("unless-stopped", True), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_what_the_images_are_made_of_reaches_the_builder() -> None:
    """``.dockerignore`` lets in what it names; ``COPY`` of anything else fails in every build, and only there."""
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")]
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source for line in copies for source in line.split()]
    assert len(sources) > 10
    assert [source for source in sources if not any(fnmatch(source, pattern) for pattern in let_in)] == []
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_no_image_runs_as_root() -> None:
    stages = re.split(r"^FROM ", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    final = {stage.splitlines()[0].split(" AS ")[1]: stage for stage in stages[1:]}
    for target in ("tools", "s3", "spark", "airflow"):
        assert "\nUSER 50000:0\n" in final[target], target
