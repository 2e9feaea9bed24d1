"""Who may do what to which znode: three roles, and what each needs in each subtree.

ZooKeeper's permissions belong to a single znode and are not inherited: every create names them. WRITE is to set a
znode's data, CREATE and DELETE are about its children. So a reader's lease needs CREATE and DELETE on
``READERS/<table>`` and nothing else, and that is all a reader gets.

Pure: the session sets what is decided here. ``docs/trust.md`` says what whoever holds which role can do with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kazoo.security import ACL, Id, Permissions

from airflow_provider_segments.core.model.records import FORMAT, Record, RecordDecoder, encode
from airflow_provider_segments.exceptions import CorruptRecordError, InvalidConfigError

ROLES = ("reader", "writer", "operator")
"""From the least to the most."""

_READ: int = Permissions.READ
_CREATE: int = Permissions.READ | Permissions.CREATE
_FILL: int = Permissions.READ | Permissions.CREATE | Permissions.DELETE
_EDIT: int = Permissions.READ | Permissions.CREATE | Permissions.WRITE
_WORK: int = Permissions.READ | Permissions.CREATE | Permissions.DELETE | Permissions.WRITE
_CHANGES: int = Permissions.ALL & ~Permissions.READ

_WRITER: dict[tuple[str, ...], int] = {
    (): _CREATE,
    ("PROPERTYSTORE",): _CREATE,
    ("PROPERTYSTORE", "CONFIGS"): _CREATE,
    ("PROPERTYSTORE", "CONFIGS", "TABLE"): _CREATE,
    ("PROPERTYSTORE", "CONFIGS", "TABLE", "*"): _EDIT,
    ("PROPERTYSTORE", "SEGMENT_LINEAGE"): _CREATE,
    ("PROPERTYSTORE", "SEGMENT_LINEAGE", "*"): _EDIT,
    ("DELETION",): _CREATE,
    ("DELETION", "PENDING"): _CREATE,
    ("DELETION", "PENDING", "*"): _CREATE,
    ("DELETION", "PENDING", "*", "*"): _READ,
    ("DELETION", "SWEEPS"): _CREATE,
    ("DELETION", "SWEEPS", "*"): _READ,
    ("DELETION", "*"): _READ,
    ("DELETION", "*", "*"): _READ,
    ("OFFLOADS",): _READ,
    ("OFFLOADS", "*"): _READ,
    ("OFFLOADS", "*", "*"): _READ,
    ("READERS",): _CREATE,
    ("READERS", "*"): _FILL,
    ("ROLES",): _READ,
    ("LOG",): _CREATE,
    ("LOG", "*"): _CREATE,
    ("LOG", "*", "*"): _READ,
}
"""What a writer may do where it is less than everything but ADMIN. It makes messages of deletion, and cannot take
them away."""

_ID = re.compile(r"(digest:[^:\s,]+:[A-Za-z0-9+/]{27}=|(?:sasl|x509):[^\s,]+|world:anyone)")


class RolesRecord(Record, frozen=True, tag_field=FORMAT, tag=1):
    """The roles as they are stored."""

    reader: tuple[str, ...]
    writer: tuple[str, ...]
    operator: tuple[str, ...]


_DECODER = RecordDecoder(RolesRecord, "record of the cluster's roles")


@dataclass(frozen=True, slots=True)
class Roles:
    """Which identities have which role: ``digest:USER:HASH``, ``sasl:USER``, ``x509:SUBJECT``, and for readers
    ``world:anyone``. Raises :class:`InvalidConfigError`."""

    reader: tuple[str, ...] = ()
    writer: tuple[str, ...] = ()
    operator: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for role in ROLES:
            for identity in getattr(self, role):
                if not isinstance(identity, str) or _ID.fullmatch(identity) is None or not identity.isprintable():
                    raise InvalidConfigError(
                        f"{role} {str(identity)[:80]!r} is no identity; use digest:USER:HASH, sasl:USER or x509:SUBJECT"
                    )
                if identity == "world:anyone" and role != "reader":
                    raise InvalidConfigError(f"world:anyone cannot be a {role}: that would shut nobody out")
        if not self.operator:
            raise InvalidConfigError("there must be an operator: nobody else could change the roles again")

    def acls(self, parts: tuple[str, ...]) -> list[ACL]:
        """The permissions of the znode at ``parts`` below the cluster's root."""
        given: dict[str, int] = {}
        granted = ((self.reader, reader_permissions(parts)), (self.writer, writer_permissions(parts)))
        for identities, permissions in (*granted, (self.operator, Permissions.ALL)):
            for identity in identities:
                given[identity] = given.get(identity, 0) | permissions
        return [ACL(bits, Id(*identity.split(":", 1))) for identity, bits in given.items() if bits]

    def encode(self) -> bytes:
        """The roles as they are stored."""
        return encode(RolesRecord(reader=self.reader, writer=self.writer, operator=self.operator))

    @classmethod
    def decode(cls, payload: bytes, where: str) -> Roles:
        """The roles in ``payload``. Raises :class:`CorruptRecordError` and :class:`NewerRecordError`."""
        found = _DECODER.decode(payload, where)
        try:
            return cls(found.reader, found.writer, found.operator)
        except InvalidConfigError as error:
            raise CorruptRecordError(f"{where}: not readable roles ({error})") from error


def reader_permissions(parts: tuple[str, ...]) -> int:
    """What a reader may do to the znode at ``parts`` below the cluster's root: see everything, make and end leases."""
    if parts == ("OPERATORS",):
        return 0
    return _FILL if len(parts) == 2 and parts[0] == "READERS" else _READ


def writer_permissions(parts: tuple[str, ...]) -> int:
    """What a writer may do to the znode at ``parts`` below the cluster's root."""
    if parts == ("OPERATORS",):
        return 0
    for pattern in _patterns(parts):
        if pattern in _WRITER:
            return _WRITER[pattern]
    return _WORK


def is_open(acls: list[ACL]) -> bool:
    """Whether anyone at all may change the znode."""
    return any(acl.id.scheme == "world" and acl.perms & _CHANGES for acl in acls)


def _patterns(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """``parts`` itself, and with as many of its last names as there are replaced by a star, one by one."""
    return [(*parts[:kept], *("*",) * (len(parts) - kept)) for kept in range(len(parts), -1, -1)]
