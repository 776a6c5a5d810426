"""The programs that tests start and no wheel brings: CI installs them (`.ci/run`)."""

import shutil

import pytest

# The Debian package of each, and the names it may have on PATH.
_PROGRAMS = {
    "prometheus": ("prometheus", ["prometheus"]),
    "promtool": ("prometheus", ["promtool"]),
    "alertmanager": ("prometheus-alertmanager", ["alertmanager", "prometheus-alertmanager"]),
    "amtool": ("prometheus-alertmanager", ["amtool"]),
    "chromium": ("chromium", ["chromium", "google-chrome"]),
}


def program(name: str) -> str:
    """Its path. Without it the test fails rather than being skipped: a skip would hide that
    nothing was tested.
    """
    package, names = _PROGRAMS[name]
    for candidate in names:
        if path := shutil.which(candidate):
            return path
    pytest.fail(
        f"this test needs {name}: apt-get install --no-install-recommends {package}", pytrace=False
    )
