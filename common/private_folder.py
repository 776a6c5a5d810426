"""A folder in the temporary directory that nobody but this user can read or write into.

Its name is known to every user of the machine, so it may be there already: made by another, who
could then read what is put there and write what is read from there, or a link of theirs.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def user_folder() -> Path:
    """Where it is; see `made_private`. Short, for a Unix socket's path ends at 107 characters."""
    return Path(tempfile.gettempdir()) / f"antefix-{os.getuid()}"


def made_private(folder: Path) -> Path:
    """The folder, made where it is not there. What is below it needs no look of its own.

    Raises PermissionError for one that is another user's or a link, OSError for one that cannot
    be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        message = "it is a link or another user's; remove it, or set TMPDIR to another folder"
        raise PermissionError(errno.EPERM, message, str(folder))
    folder.chmod(0o700)
    return folder
