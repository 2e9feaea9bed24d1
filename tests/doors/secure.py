"""A real ZooKeeper with TLS, digest and SASL, and users of three roles."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_segments.core import access
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper.acl import Roles
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper, free_port

PASSWORDS = {name: f"{name}-geheim" for name in ("reader", "writer", "operator", "stranger")}
STORE_PASSWORD = "changeit"


def make_certificates(folder: Path) -> dict[str, str]:
    """A server key with a certificate for localhost, and what a client trusts."""
    folder.mkdir(parents=True, exist_ok=True)
    keystore, ca = folder / "server.p12", folder / "ca.pem"
    keytool = shutil.which("keytool") or "keytool"
    common = ["-alias", "server", "-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
    names = ["-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1"]
    for arguments in (
        ["-genkeypair", "-keyalg", "RSA", "-validity", "2", *names, *common],
        ["-exportcert", "-rfc", "-file", str(ca), *common],
    ):
        subprocess.run([keytool, *arguments], check=True, capture_output=True, timeout=120)
    return {"keystore": str(keystore), "ca": str(ca)}


@dataclass(frozen=True)
class SecureZooKeeper:
    """Where the server listens, without and with TLS, and the certificate to trust."""

    hosts: str
    tls_hosts: str
    ca: str

    def settings(self, who: str | None, kind: str) -> ZooKeeperSettings:
        """How ``who`` connects: ``plain``, ``digest``, ``sasl`` or ``tls`` (with digest)."""
        plain = ZooKeeperSettings(hosts=self.hosts, operation_timeout=60, connect_timeout=60)
        if kind == "tls":
            plain = dataclasses.replace(plain, hosts=self.tls_hosts, use_ssl=True, ca=self.ca)
        if who is None:
            return plain
        auth = "sasl" if kind == "sasl" else "digest"
        return dataclasses.replace(plain, username=who, password=PASSWORDS[who], auth=auth)

    def roles(self, kind: str) -> Roles:
        """The users by their roles. The stranger has none."""
        found = {role: self.settings(role, kind).identities for role in ("reader", "writer", "operator")}
        return Roles(found["reader"], found["writer"], found["operator"])

    @contextmanager
    def store(self, who: str | None, kind: str, cluster: str, storage: Path) -> Iterator[SegmentStore]:
        """The cluster as ``who`` sees it."""
        uri = storage.as_uri()
        with SegmentStore.connect(cluster=cluster, storage_uri=uri, zookeeper=self.settings(who, kind)) as opened:
            yield opened

    def apply_roles(self, kind: str, cluster: str, storage: Path) -> None:
        """Shut the cluster."""
        with self.store("operator", kind, cluster, storage) as store:
            report = access.apply(store.cluster, self.roles(kind))
            assert report.ok, report


@contextmanager
def secure_zookeeper(folder: Path) -> Iterator[SecureZooKeeper]:
    """The server of the pyspark wheel, with a keystore by ``keytool`` and a JAAS file."""
    made = make_certificates(folder)
    jaas = folder / "jaas.conf"
    users = "\n".join(f'  user_{name}="{password}"' for name, password in PASSWORDS.items())
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f"Server {{\n  {module} required\n{users};\n}};\n")
    port = free_port()
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": made["keystore"],
        "ssl.keyStore.password": STORE_PASSWORD,
        "ssl.clientAuth": "none",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    java = [f"-Djava.security.auth.login.config={jaas}"]
    with EmbeddedZooKeeper(folder / "zookeeper", sync=False, settings=settings, java_options=java) as server:
        yield SecureZooKeeper(server.hosts, f"localhost:{port}", made["ca"])
