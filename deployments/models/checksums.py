"""`SHA256SUMS`: the content of a finished folder.

`seal` makes a folder's files durable and records them; `damage` reports later differences. The
format is that of `sha256sum -c`.
"""

import hashlib
import os
from pathlib import Path

SUMS_FILE = "SHA256SUMS"


def seal(folder: Path) -> None:
    names = sorted(entry.name for entry in folder.iterdir())
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in names]
    (folder / SUMS_FILE).write_text("".join(lines))
    for path in (*(folder / name for name in names), folder / SUMS_FILE, folder):
        flush_to_disk(path)


def damage(folder: Path) -> str | None:
    """Return the damage of a sealed folder as text, or None. Reads every byte once."""
    try:
        lines = (folder / SUMS_FILE).read_text().splitlines()
        for line in lines:
            expected, name = line.split("  ", 1)
            if _sha256(folder / name) != expected:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:
        return f"{SUMS_FILE} or a file it names cannot be read: {error}"
    return None if lines else f"{SUMS_FILE} is empty"


def flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
