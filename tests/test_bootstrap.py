"""Runs the real bootstrap, with the real uv, on a toy repository of three wheels."""

import ast
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bootstrap
from tests.missing import program

ROOT = Path(bootstrap.__file__).parent
BACKEND = """
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        info = "toy-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: toy\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def make_wheel(folder: Path, name: str, version: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def pin(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


def variables(repository: Path, **others: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(repository),
        "UV_CACHE_DIR": str(repository / "uv-cache"),
        "UV_HTTP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(repository / "wheels"),
        **others,
    }


def run(repository: Path, *arguments: str, **others: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(repository / "bootstrap.py"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=variables(repository, **others),
    )


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    complaints = [line for line in done.stderr.splitlines() if line.startswith("bootstrap:")]
    assert len(complaints) == 1, done.stderr
    assert done.stderr.splitlines()[-1] == complaints[0]
    return complaints[0]


def unfolded(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


def site_packages(repository: Path) -> Path:
    return next(repository.glob(".venv/lib/python3.*/site-packages"))


@pytest.fixture(scope="module")
def bootstrapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program("libnuma.so.1")
    repository = tmp_path_factory.mktemp("repository")
    wheels = repository / "wheels"
    requirements = repository / "requirements"
    wheels.mkdir()
    requirements.mkdir()
    shutil.copy(ROOT / "bootstrap.py", repository)
    make_wheel(wheels, "torch", "2.13.0+cpu")
    for_all, for_developers = make_wheel(wheels, "one", "1.0"), make_wheel(wheels, "two", "1.0")
    (requirements / "torch.txt").write_text("torch==2.13.0\n")
    (requirements / "cpu.lock").write_text(pin(for_all))
    (requirements / "dev.lock").write_text(pin(for_all) + pin(for_developers))
    (repository / "backend.py").write_text(BACKEND)
    (repository / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    subprocess.run([sys.executable, str(ROOT / "bootstrap.py"), "--uv"], check=True)
    (repository / ".cache").mkdir()
    (repository / ".cache/uv").symlink_to(ROOT / ".cache/uv")
    shutil.copy(ROOT / "requirements/uv.lock", requirements)
    done = run(repository)
    assert done.returncode == 0, done.stderr
    return repository


@pytest.fixture
def repository(bootstrapped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bootstrapped, tmp_path / "repository", symlinks=True))


def test_bootstrap_installs_torch_the_lock_file_and_the_project(bootstrapped: Path) -> None:
    installed = {info.name for info in site_packages(bootstrapped).glob("*.dist-info")}
    assert {"torch-2.13.0+cpu.dist-info", "one-1.0.dist-info", "toy-1.0.dist-info"} <= installed
    assert "two-1.0.dist-info" not in installed


def test_dev_adds_what_tests_need_and_also_serves_up(repository: Path) -> None:
    assert run(repository, "--dev").returncode == 0
    assert (site_packages(repository) / "two.py").exists()
    assert run(repository).stderr == ""


def test_a_second_run_has_nothing_to_do_and_is_silent(repository: Path) -> None:
    (repository / ".cache/uv").unlink()  # which installs whatever there is to install
    done = run(repository)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("changed", ["requirements/cpu.lock", "pyproject.toml"])
def test_a_changed_pin_or_project_is_installed_again(repository: Path, changed: str) -> None:
    with (repository / changed).open("a") as file:
        file.write("\n# changed\n")
    done = run(repository)
    assert done.returncode == 0
    assert "+ toy==1.0" in done.stderr
    assert run(repository).stderr == ""


def test_a_newer_pin_takes_the_place_of_the_older(repository: Path) -> None:
    newer = make_wheel(repository / "wheels", "one", "2.0")
    (repository / "requirements/cpu.lock").write_text(pin(newer))
    assert run(repository).returncode == 0
    assert [info.name for info in site_packages(repository).glob("one-*")] == ["one-2.0.dist-info"]


def test_an_environment_whose_python_was_removed_is_recreated(repository: Path) -> None:
    for link in (repository / ".venv/bin").glob("python*"):
        link.unlink()
        link.symlink_to("/nonexistent/python")
    assert run(repository).returncode == 0
    assert (site_packages(repository) / "one.py").exists()


def test_a_package_that_a_kill_left_half_installed_is_installed_whole(repository: Path) -> None:
    (repository / ".venv/bootstrap-cpu.stamp").unlink()
    (site_packages(repository) / "one.py").unlink()
    (site_packages(repository) / "one-1.0.dist-info/INSTALLER").unlink()
    assert run(repository).returncode == 0
    assert (site_packages(repository) / "one.py").exists()


def test_a_failed_run_is_not_taken_for_a_finished_one_when_the_files_change_back(
    repository: Path,
) -> None:
    lock = repository / "requirements/cpu.lock"
    good = lock.read_text()
    lock.write_text("absent==1.0 --hash=sha256:" + "0" * 64 + "\n")
    done = run(repository)
    complaint(done)
    assert "absent" in done.stderr
    lock.write_text(good)
    assert run(repository).stderr != ""


def test_a_wheel_that_is_not_the_pinned_one_is_refused_by_name(repository: Path) -> None:
    lock = repository / "requirements/dev.lock"
    lock.write_text(re.sub("sha256:.*$", "sha256:" + "0" * 64, lock.read_text()))
    done = run(repository, "--dev")
    assert "uv cache clean" in complaint(done)
    assert "Hash mismatch for `two==1.0`" in unfolded(done)
    assert not (site_packages(repository) / "two.py").exists()


def test_without_a_network_the_error_names_the_remedy(repository: Path) -> None:
    nowhere = "http://127.0.0.1:9/simple"
    done = run(repository, "--dev", PIP_NO_INDEX="0", PIP_FIND_LINKS="", PIP_INDEX_URL=nowhere)
    line = complaint(done)
    assert "connect this machine, set HTTPS_PROXY or point PIP_INDEX_URL at a mirror" in line
    assert nowhere in done.stderr


def test_without_torch_on_the_configured_index_its_own_cpu_index_is_asked(
    repository: Path,
) -> None:
    (repository / ".venv/bootstrap-cpu.stamp").unlink()
    shutil.rmtree(site_packages(repository) / "torch-2.13.0+cpu.dist-info")
    (repository / "wheels/torch-2.13.0+cpu-py3-none-any.whl").unlink()
    done = run(
        repository,
        PIP_NO_INDEX="0",
        PIP_INDEX_URL=(repository / "wheels").as_uri(),
        PIP_PROXY="http://127.0.0.1:9",
    )
    assert "Failed to fetch: https://download.pytorch.org/whl/cpu" in unfolded(done)
    assert "PIP_EXTRA_INDEX_URL at a mirror that has torch==2.13.0+cpu" in complaint(done)


def test_packages_come_from_the_index_of_pips_configuration_file(repository: Path) -> None:
    shutil.rmtree(repository / ".venv")
    file = repository / "pip.conf"
    file.write_text(f"[global]\nno-index = yes\n[install]\nfind-links =\n  {repository}/wheels\n")
    settings = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""}
    assert run(repository, PIP_CONFIG_FILE=str(file), **settings).returncode == 0
    assert (site_packages(repository) / "one.py").exists()


def test_uv_gets_pips_index_settings_unless_it_has_its_own(
    repository: Path,
) -> None:
    told = {
        "PIP_INDEX_URL": "https://user:secret@mirror.test/simple",
        "PIP_EXTRA_INDEX_URL": "https://a.test/simple\nhttps://b.test/simple",
        "PIP_FIND_LINKS": "~/wheels https://c.test/",
        "PIP_TRUSTED_HOST": "a.test b.test:8080",
        "PIP_PROXY": "http://proxy.test:3128",
        "PIP_CERT": "/etc/ours.pem",
        "PIP_DEFAULT_TIMEOUT": "60",
        "UV_HTTP_RETRIES": "7",
        "PIP_RETRIES": "9",
    }
    code = (
        "import json, os, bootstrap; "
        "print(json.dumps({'options': bootstrap.follow_pip(), **os.environ}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        cwd=repository,
        env=variables(repository, **told, PIP_NO_INDEX="off"),
    )
    heard = json.loads(done.stdout)
    expected = {
        "options": [],
        "UV_DEFAULT_INDEX": "https://user:secret@mirror.test/simple",
        "UV_INDEX": "https://a.test/simple https://b.test/simple",
        "UV_FIND_LINKS": f"{repository}/wheels,https://c.test/",
        "UV_INSECURE_HOST": "a.test b.test:8080",
        "HTTP_PROXY": "http://proxy.test:3128",
        "HTTPS_PROXY": "http://proxy.test:3128",
        "SSL_CERT_FILE": "/etc/ours.pem",
        "UV_HTTP_TIMEOUT": "60",
        "UV_HTTP_RETRIES": "7",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert {name: heard[name] for name in expected} == expected


def test_two_runs_at_once_take_turns(repository: Path) -> None:
    stamp = repository / ".venv/bootstrap-cpu.stamp"
    stamp.unlink()
    with (repository / "pyproject.toml").open() as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, str(repository / "bootstrap.py")],
            stderr=subprocess.PIPE,
            text=True,
            env=variables(repository),
        )
        assert second.stderr is not None
        assert "waiting for it" in second.stderr.readline()
        assert not stamp.exists()
    assert "+ toy==1.0" in second.communicate()[1]
    assert second.returncode == 0


def fake_python(folder: Path, name: str, version: str, *, with_venv: bool = True) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {version}\n{'echo venv' if with_venv else 'exit 1'}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("wrong", ["3.10", "3.13"])
def test_a_supported_python_on_path_is_used_instead_of_an_unsupported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr(sys, "executable", str(fake_python(tmp_path, "python3", wrong)))
    right = fake_python(tmp_path, "python3.12", "3.12")
    assert bootstrap.find_python(str(tmp_path)) == str(right)


def test_a_command_on_path_that_is_not_what_its_name_says_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(fake_python(tmp_path, "python3", "3.13")))
    fake_python(tmp_path, "python3.11", "3.13")
    right = fake_python(tmp_path, "python3.12", "3.12")
    assert bootstrap.find_python(str(tmp_path)) == str(right)


def test_without_a_supported_python_the_error_names_the_supported_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(fake_python(tmp_path, "python3", "3.13")))
    with pytest.raises(bootstrap.Failure, match=r"no python3\.11 or python3\.12 is on PATH"):
        bootstrap.find_python(str(tmp_path))


def test_without_the_venv_module_the_error_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = fake_python(tmp_path, "python3", "3.11", with_venv=False)
    monkeypatch.setattr(sys, "executable", str(lacking))
    with pytest.raises(bootstrap.Failure, match=r"apt-get install python3\.11-venv"):
        bootstrap.find_python(str(tmp_path))


def test_too_small_a_disk_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(100 * 2**30, 97 * 2**30, 3 * 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    with pytest.raises(
        bootstrap.Failure, match=rf"3\.0 GiB free in .*, {bootstrap.NEW_GIB} GiB needed"
    ):
        bootstrap.install("cpu")
    assert list(tmp_path.iterdir()) == []


def test_without_libnuma_the_error_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(bootstrap.Failure, match="apt-get install libnuma1"):
        bootstrap.check_libraries()


def test_old_python_versions_can_parse_bootstrap() -> None:
    ast.parse((ROOT / "bootstrap.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("name", ["cpu", "dev", "gpu", "interpreter", "uv"])
def test_lock_files_pin_hashes_and_name_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    pins = re.findall(r"^\S+==", text, re.MULTILINE)
    assert len(pins) > (50 if name in ("cpu", "dev", "gpu") else 0)
    assert len(re.findall(r"^\S+==.*\\\n +--hash=sha256:[0-9a-f]{64}", text, re.M)) == len(pins)
    assert "://" not in text
    assert "index-url" not in text


def test_packages_that_serve_are_tested_at_the_same_pins() -> None:
    served, tested = (
        set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / name).read_text(), re.M))
        for name in ("cpu.lock", "dev.lock")
    )
    assert served <= tested


def test_a_laptop_does_not_download_nixl() -> None:
    """It has 240 MB, and only fleets with peers use it."""
    pins = re.findall(r"^(nixl\S*)==", (ROOT / "requirements/cpu.lock").read_text(), re.M)
    assert not pins
    tested = re.findall(r"^(nixl\S*)==", (ROOT / "requirements/dev.lock").read_text(), re.M)
    assert tested == ["nixl", "nixl-cu12"]
