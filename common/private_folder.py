"""A folder in the temporary directory that only this user can read and write.

Every user of the machine knows its name, so another user may have created it, or a link. That user
could read its content and write into it.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def user_folder() -> Path:
    """Return the folder's path; see `made_private`. It is short, because the path of a Unix socket
    has at most 107 characters."""
    return Path(tempfile.gettempdir()) / f"antefix-{os.getuid()}"


def made_private(folder: Path) -> Path:
    """Create the folder if necessary, and return it. Its content needs no further check.

    Raises PermissionError if it belongs to another user or is a link, and OSError if it cannot be
    created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        message = "it is a link or another user's; remove it, or set TMPDIR to another folder"
        raise PermissionError(errno.EPERM, message, str(folder))
    folder.chmod(0o700)
    return folder
