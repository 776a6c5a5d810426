"""A cache of the Hugging Face Hub as the chart's download leaves it, with whatever files."""

import shutil
from pathlib import Path

COMMIT = "c0ffee0123456789c0ffee0123456789c0ffee01"


def downloaded(home: Path, model: str, files: Path | None = None, revision: str = "main") -> Path:
    """The snapshot of a model below HF_HOME, with its marker; `files` are copied into it."""
    repository = home / "hub" / f"models--{model.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    if files is None:
        snapshot.mkdir(parents=True)
    else:
        shutil.copytree(files, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(COMMIT)
    marker = marker_of(home, model, revision)
    marker.parent.mkdir(exist_ok=True)
    marker.write_text(f"{COMMIT}\n")
    return snapshot


def marker_of(home: Path, model: str, revision: str = "main") -> Path:
    return home / ".antefix" / f"{model}@{revision}".replace("/", "--")
