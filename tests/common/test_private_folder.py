"""What is put into the temporary directory is this user's alone, whichever user was there
first."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from cli.local.home import Home
from cli.local.ray_head import prepare_temp_dir, temp_dir
from common.errors import Problem
from common.private_folder import made_private, user_folder
from deployments.process import node_drain
from observability.metrics import metric_files
from tests.waiting import cancelled, until


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(metric_files.FOLDER, raising=False)
    return tmp_path


def test_the_folder_is_created_for_this_user_only() -> None:
    assert made_private(user_folder()).stat().st_mode & 0o777 == 0o700


def test_an_opened_folder_is_made_private_again() -> None:
    made_private(user_folder()).chmod(0o777)
    assert made_private(user_folder()).stat().st_mode & 0o777 == 0o700


@pytest.fixture(params=["a link", "another user's"])
def foreign_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getuid()
    if request.param == "another user's":
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
        user_folder().mkdir(mode=0o777)
    else:
        elsewhere = user_folder().with_name("elsewhere")
        elsewhere.mkdir()
        user_folder().symlink_to(elsewhere)


@pytest.mark.usefixtures("foreign_folder")
def test_nothing_is_written_into_a_folder_of_another_user(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="another user's"):
        node_drain.ask(node_drain.folder_of("n"), 0.0, 1.0)
    with pytest.raises(PermissionError, match="another user's"):
        metric_files.node_folder("f")
    with pytest.raises(Problem, match="is owned by another user"):
        prepare_temp_dir(Home(tmp_path / "home"))
    assert not list(user_folder().glob("*"))


async def test_a_drain_is_followed_once_the_folder_belongs_to_the_user(tmp_path: Path) -> None:
    async def begin(_: float) -> NoReturn:
        raise AssertionError("nobody drains")

    user_folder().symlink_to(tmp_path)
    task = asyncio.create_task(node_drain.follow("n", begin, lambda: 0))
    await asyncio.sleep(0.05)
    user_folder().unlink()
    told = user_folder() / "nodes" / "n" / str(os.getpid())
    await until(told.exists)
    await cancelled(task)


def test_other_users_cannot_read_what_ray_opens_to_all(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    prepare_temp_dir(home)
    temp_dir(home).chmod(0o777)  # as `ray start` does
    assert temp_dir(home).parent.stat().st_mode & 0o077 == 0
