"""The release of Antefix that this process runs."""

from __future__ import annotations

import importlib.metadata

VERSION = importlib.metadata.version("antefix")
