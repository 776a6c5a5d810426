"""Adapters come from allowed places only, and their copies are named by their content."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from obstore import put_async
from obstore.store import from_url

from deployments.engine.adapters.adapter_files import (
    CONFIG,
    WEIGHTS,
    AdapterFiles,
    UnusableAdapter,
    copied,
    is_allowed,
)
from tests.fakes.hub_cache import COMMIT, downloaded
from tests.fakes.loras import write_adapter
from tests.object_store import BUCKET, serving
from tests.sentences import assert_sentences

BASES = ("s3://bucket/adapters", "https://models.example/adapters", "acme")


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("/adapters/sql", True),
        ("/adapters", True),
        ("/adapters/a/../sql", True),
        ("/adapters/../etc", False),
        ("/adapters-of-others/sql", False),
        ("/", False),
        ("acme/sql", True),
        ("acme", True),
        ("acme/sql@main", True),
        ("acme2/sql@acme/sql", False),
        ("s3://bucket@s3://bucket/adapters/sql", False),
        ("acme2/sql", False),
        ("acme/../other/sql", False),
        ("s3://bucket/adapters/sql", True),
        ("s3://bucket/adapters2/sql", False),
        ("s3://bucket/adapters/../secrets", False),
        ("file:///etc", False),
        ("adapters/sql", False),
        ("", False),
    ],
)
def test_only_adapters_within_an_allowed_source_are_accepted(source: str, allowed: bool) -> None:
    assert is_allowed(source, ["/adapters", "acme", "s3://bucket/adapters/"]) == allowed


@pytest.mark.parametrize(
    "base", ["s3://bucket/adapters", "https://models.example/adapters", "acme"]
)
@pytest.mark.parametrize(
    "leaving",
    [
        *("/%2e%2e/%2e%2e/secrets", "/.%2e/secrets", "/%2E./secrets", "/%252e%252e/secrets"),
        *("/\\..\\..\\secrets", "/..\\secrets", "/\t../secrets", "/.\t./secrets"),
        "/.\n./secrets",
        *("/sql?x=/../..", "/sql#/../..", "/\x00/sql", "/\x7f/sql", "/.\u200b./secrets"),
        *(
            "/\uff0e\uff0e/secrets",
            "/\u2025/secrets",
            "/../secrets",
            "/./../secrets",
            "/.. /secrets",
        ),
        *("/.../secrets", "/sql%2f..", "/sql ", "/\u2028../secrets", "/\u00a0../secrets"),
    ],
)
def test_an_ambiguous_source_url_is_not_allowed(base: str, leaving: str) -> None:
    assert not is_allowed(base + leaving, [base])
    assert not is_allowed(" " + base + "/sql", [base])


@pytest.mark.parametrize(
    "base", ["s3://bucket/adapters", "https://models.example/adapters", "acme"]
)
@pytest.mark.parametrize(
    "name",
    ["sql", "sql-v1.2", "SQL_final..2", "a/b/c", "my sql", "modèle", "a+b=c,d", ".hidden", "東京"],
)
def test_legal_names_are_allowed(base: str, name: str) -> None:
    assert is_allowed(f"{base}/{name}", [base])


def test_a_refused_source_is_named_with_the_reason(tmp_path: Path) -> None:
    source = "s3://bucket/adapters/%2e%2e/secrets"
    with pytest.raises(UnusableAdapter, match=r"must not contain '%'") as refused:
        copied(source, ["s3://bucket/adapters"], tmp_path)
    assert source in str(refused.value)


def test_a_file_url_whose_link_leaves_the_folder_is_not_allowed(tmp_path: Path) -> None:
    outside = write_adapter(tmp_path / "outside")
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "link").symlink_to(outside)
    write_adapter(tmp_path / "adapters" / "sql")
    allowed = [f"file://{tmp_path}/adapters"]
    assert not is_allowed(f"{allowed[0]}/link", allowed)
    assert is_allowed(f"{allowed[0]}/sql", allowed)


def test_a_link_that_leaves_the_folder_is_not_allowed(tmp_path: Path) -> None:
    outside = write_adapter(tmp_path / "outside")
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "link").symlink_to(outside)
    assert not is_allowed(str(tmp_path / "adapters" / "link"), [str(tmp_path / "adapters")])


def test_a_copy_has_the_digest_of_its_content(tmp_path: Path) -> None:
    allowed, into = [str(tmp_path)], tmp_path / "copies"
    first = copied(str(write_adapter(tmp_path / "a", b"1")), allowed, into)
    again = copied(str(write_adapter(tmp_path / "b", b"1")), allowed, into)
    other = copied(str(write_adapter(tmp_path / "c", b"2")), allowed, into)
    of_rank = copied(str(write_adapter(tmp_path / "d", b"1", r=9)), allowed, into)
    assert first.digest == again.digest and first.folder != again.folder
    assert len({first.digest, other.digest, of_rank.digest}) == 3
    assert (first.rank, of_rank.rank) == (8, 9)
    assert (first.folder / WEIGHTS).read_bytes() == b"1"
    write_adapter(tmp_path / "a", b"changed")
    assert (first.folder / WEIGHTS).read_bytes() == b"1"
    assert set(into.iterdir()) == {files.folder for files in (first, again, other, of_rank)}


def test_an_adapter_is_read_from_a_folder_url(tmp_path: Path) -> None:
    url = f"file://{write_adapter(tmp_path / 'a')}"
    assert copied(url, [f"file://{tmp_path}"], tmp_path / "copies").rank == 8


async def test_an_object_store_is_read_with_the_credentials_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = os.urandom(3_000_000)  # in several pieces
    folder = write_adapter(tmp_path / "a", weights)
    allowed, url = [f"s3://{BUCKET}/adapters"], f"s3://{BUCKET}/adapters/a"

    def copy(source: str) -> AdapterFiles:
        return copied(source, allowed, tmp_path / "copies")

    async with serving(tmp_path / "store") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store = from_url(url, client_options={"allow_http": True})
        for file in folder.iterdir():
            await put_async(store, file.name, file)
        found = await asyncio.to_thread(copy, url)
        assert (found.folder / WEIGHTS).read_bytes() == weights
        assert found.digest == copied(str(folder), [str(tmp_path)], tmp_path / "others").digest
        with pytest.raises(UnusableAdapter, match=f"not found.*{CONFIG} and {WEIGHTS}"):
            await asyncio.to_thread(copy, f"{url}-2")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(UnusableAdapter, match=r"`env` of the pool") as refused:
            await asyncio.to_thread(copy, url)
        assert "\n" not in str(refused.value)  # the store's details


# What is copied from a cache of the Hub, which is where HF_HOME was as Python started.
COPY = """
import sys
from pathlib import Path
from deployments.engine.adapters.adapter_files import copied
files = copied(sys.argv[1], ["acme"], Path(sys.argv[2]))
print(files.source, files.rank)
"""


@pytest.mark.parametrize("source", ["acme/a", "acme/a@main", f"acme/a@{COMMIT}"])
def test_a_hub_id_is_stored_with_its_commit(tmp_path: Path, source: str) -> None:
    downloaded(tmp_path / "home", "acme/a", write_adapter(tmp_path / "a"))
    done = subprocess.run(
        [sys.executable, "-c", COPY, source, str(tmp_path / "copies")],
        env=os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"acme/a@{COMMIT}", "8"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "does not describe a LoRA adapter"),
        ("[]", "does not describe a LoRA adapter"),
        ('{"peft_type": "IA3", "r": 8}', "does not describe a LoRA adapter"),
        ('{"peft_type": "LORA", "r": 0}', "does not describe a LoRA adapter"),
        ('{"peft_type": "LORA", "r": true}', "does not describe a LoRA adapter"),
        ('{"peft_type": "LORA"}', "does not describe a LoRA adapter"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, config: str, says: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / CONFIG).write_text(config)
    _refused(str(folder), tmp_path, says)


@pytest.mark.parametrize("missing", [CONFIG, WEIGHTS])
def test_a_missing_file_is_refused(tmp_path: Path, missing: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / missing).unlink()
    _refused(str(folder), tmp_path, "cannot be read: No such file")


def test_a_store_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    _refused("nostore://bucket/a", tmp_path, "copy the adapter to a folder", "nostore://bucket")


def test_an_id_that_cannot_be_downloaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    _refused("acme/a", tmp_path, "cannot be downloaded", "acme")


def _refused(source: str, tmp_path: Path, says: str, allowed: str = "") -> None:
    with pytest.raises(UnusableAdapter) as refused:
        copied(source, [allowed or str(tmp_path)], tmp_path / "copies")
    message = str(refused.value)
    assert says in message and source in message
    assert_sentences(message[0].upper() + message[1:])
    assert not list((tmp_path / "copies").iterdir())
