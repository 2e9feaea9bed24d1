"""Owner metadata in an extended attribute of the file, where the file system has them."""

from __future__ import annotations

import errno
import os

NAME = "user.segments.owner"

_NONE = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA}


def attach(target: int, text: str) -> bool:
    """Describe the open file; false where the file system cannot."""
    try:
        os.setxattr(target, NAME, text.encode())
    except OSError as error:
        if error.errno in _NONE:
            return False
        raise
    return True


def read(found: int) -> bytes | None:
    """What describes the open file, if it has the attribute."""
    try:
        return os.getxattr(found, NAME)
    except OSError as error:
        if error.errno in _NONE:
            return None
        raise
