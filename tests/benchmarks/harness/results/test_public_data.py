"""Where public data is looked for, in which order; none but the pinned file is given."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.harness.results import public_data
from benchmarks.harness.results.public_data import SOURCES, Source, find
from common.errors import Problem

NAME, CONTENT, OTHER = "crds/thing.yaml", b"the pinned file\n", b"another file\n"
Serve = Callable[[bytes | None], str]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/published"
        finally:
            server.shutdown()
            thread.join()


class Places:
    """The four of them, all empty."""

    def __init__(self, folder: Path) -> None:
        self.given, self.beside, self.cache, self.served = (
            folder / name for name in ("given", "beside", "cache", "served")
        )
        for made in (self.beside, self.served):
            made.mkdir()

    def put(self, place: Path, content: bytes) -> Path:
        file = place / ("published" if place is self.served else NAME)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    @property
    def cached(self) -> Path:
        return self.cache / "data" / NAME


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    places = Places(tmp_path)
    monkeypatch.setenv("ANTEFIX_TEST_DATA", str(places.given))
    monkeypatch.setenv("ANTEFIX_CACHE", str(places.cache))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(public_data, "BESIDE", places.beside)
    monkeypatch.setattr(public_data, "_find", public_data._find.__wrapped__)  # as a new process
    with serving(places.served) as url:
        source = Source(url, hashlib.sha256(CONTENT).hexdigest())
        monkeypatch.setitem(SOURCES, NAME, source)
        yield places


def test_the_named_folder_comes_before_the_one_next_to_the_repository(
    places: Places,
) -> None:
    beside, given = places.put(places.beside, CONTENT), places.put(places.given, CONTENT)
    assert find(NAME) == given
    given.unlink()
    assert find(NAME) == beside


def test_missing_data_is_downloaded_once(places: Places) -> None:
    served = places.put(places.served, CONTENT)
    assert find(NAME) == places.cached
    assert places.cached.read_bytes() == CONTENT
    served.unlink()
    assert find(NAME) == places.cached


def test_a_download_that_was_damaged_in_the_cache_is_made_again(places: Places) -> None:
    places.put(places.served, CONTENT)
    places.cached.parent.mkdir(parents=True)
    places.cached.write_bytes(CONTENT[:4])
    assert find(NAME).read_bytes() == CONTENT


def test_a_download_other_than_the_pinned_file_is_rejected_and_not_kept(places: Places) -> None:
    places.put(places.served, OTHER)
    with pytest.raises(Problem, match=r"what was served is not the pinned file"):
        find(NAME)
    assert not places.cached.exists()


def test_another_file_in_a_folder_of_the_users_is_named(places: Places) -> None:
    given = places.put(places.given, OTHER)
    places.put(places.served, CONTENT)
    with pytest.raises(Problem) as caught:
        find(NAME)
    assert str(caught.value).startswith(f"{given} is not the file at http://127.0.0.1:")
    assert str(caught.value).endswith("/published; replace it or remove it")


def test_a_failed_download_reports_the_reason_and_a_remedy(places: Places) -> None:
    with pytest.raises(Problem) as caught:
        find(NAME)
    said = str(caught.value)
    assert said.startswith(f"{NAME} cannot be downloaded from http://127.0.0.1:")
    assert "404" in said
    assert said.endswith(
        f"; connect this machine, or set ANTEFIX_TEST_DATA to a folder that has {NAME}"
    )


def test_sources_are_pinned_to_a_commit() -> None:
    for source in SOURCES.values():
        commit = source.url.split("/")[5]
        assert len(commit) == 40 and int(commit, 16)
