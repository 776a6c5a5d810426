"""Runs the real bootstrap, real venv and pip included, on a toy repository of three wheels."""

import ast
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import time
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

NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "PIP_RETRIES": "1"}


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


def run(repository: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(repository / "bootstrap.py"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(repository),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(repository / "wheels"),
            "PIP_RETRIES": "0",
            **variables,
        },
    )


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    complaints = [line for line in done.stderr.splitlines() if line.startswith("bootstrap:")]
    assert len(complaints) == 1, done.stderr
    assert done.stderr.splitlines()[-1] == complaints[0]
    return complaints[0]


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
    done = run(repository)
    assert done.returncode == 0, done.stderr
    return repository


@pytest.fixture
def repository(bootstrapped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bootstrapped, tmp_path / "repository", symlinks=True))


def test_it_installs_torch_the_lock_and_the_project(bootstrapped: Path) -> None:
    installed = {info.name for info in site_packages(bootstrapped).glob("*.dist-info")}
    assert {"torch-2.13.0+cpu.dist-info", "one-1.0.dist-info", "toy-1.0.dist-info"} <= installed
    assert "two-1.0.dist-info" not in installed


def test_dev_adds_what_tests_need_and_also_serves_up(repository: Path) -> None:
    assert run(repository, "--dev").returncode == 0
    assert (site_packages(repository) / "two.py").exists()
    before = (repository / ".venv/bootstrap.log").stat().st_mtime_ns
    assert run(repository).returncode == 0
    assert (repository / ".venv/bootstrap.log").stat().st_mtime_ns == before


def test_a_second_run_has_nothing_to_do_and_is_quick_and_silent(repository: Path) -> None:
    begin = time.monotonic()
    done = run(repository)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - begin < 1.0


@pytest.mark.parametrize("changed", ["requirements/cpu.lock", "pyproject.toml"])
def test_a_changed_pin_or_project_is_installed_again(repository: Path, changed: str) -> None:
    with (repository / changed).open("a") as file:
        file.write("\n# changed\n")
    done = run(repository)
    assert done.returncode == 0
    assert "100 %" in done.stderr


def test_an_environment_whose_python_vanished_is_made_again(repository: Path) -> None:
    for link in (repository / ".venv/bin").glob("python*"):
        link.unlink()
        link.symlink_to("/nonexistent/python")
    assert run(repository).returncode == 0
    assert (site_packages(repository) / "one.py").exists()


def test_a_package_that_a_kill_left_half_installed_is_installed_whole(repository: Path) -> None:
    (repository / ".venv/bootstrap-cpu.stamp").unlink()
    (site_packages(repository) / "one.py").unlink()
    (site_packages(repository) / "one-1.0.dist-info/RECORD").unlink()
    assert run(repository).returncode == 0
    assert (site_packages(repository) / "one.py").exists()


def test_a_failed_run_is_not_taken_for_a_finished_one_when_the_files_change_back(
    repository: Path,
) -> None:
    lock = repository / "requirements/cpu.lock"
    good = lock.read_text()
    lock.write_text("absent==1.0 --hash=sha256:" + "0" * 64 + "\n")
    assert run(repository).returncode == bootstrap.EXIT_PIP_FAILED
    lock.write_text(good)
    assert run(repository).stderr != ""


def test_a_wheel_that_is_not_the_pinned_one_is_refused_by_name(repository: Path) -> None:
    lock = repository / "requirements/dev.lock"
    lock.write_text(re.sub("sha256:.*$", "sha256:" + "0" * 64, lock.read_text()))
    done = run(repository, "--dev")
    assert done.returncode == bootstrap.EXIT_HASH_MISMATCH
    assert "two is not the file that requirements/ pins" in complaint(done)


def test_without_a_network_the_line_says_so(repository: Path) -> None:
    done = run(
        repository,
        "--dev",
        PIP_NO_INDEX="0",
        PIP_FIND_LINKS="",
        PIP_EXTRA_INDEX_URL="",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="1",
    )
    assert done.returncode == bootstrap.EXIT_NO_NETWORK
    assert "pip cannot reach its package index (Connection refused)" in complaint(done)
    assert "PIP_INDEX_URL" in complaint(done)


def test_without_torch_on_the_configured_index_its_own_cpu_index_is_asked(
    repository: Path,
) -> None:
    (repository / ".venv/bootstrap-cpu.stamp").unlink()
    shutil.rmtree(site_packages(repository) / "torch-2.13.0+cpu.dist-info")
    (repository / "wheels/torch-2.13.0+cpu-py3-none-any.whl").unlink()
    done = run(
        repository, PIP_NO_INDEX="0", PIP_INDEX_URL=(repository / "wheels").as_uri(), **NOWHERE
    )
    assert done.returncode == bootstrap.EXIT_NO_NETWORK
    assert "https://download.pytorch.org/whl/cpu" in complaint(done)


def test_another_failure_gives_the_last_error_of_pip_and_the_log(repository: Path) -> None:
    lock = repository / "requirements/dev.lock"
    lock.write_text("absent==1.0 --hash=sha256:" + "0" * 64 + "\n")
    done = run(repository, "--dev")
    assert done.returncode == bootstrap.EXIT_PIP_FAILED
    assert "No matching distribution found for absent==1.0" in complaint(done)
    assert "bootstrap.log" in complaint(done)
    assert "absent" in (repository / ".venv/bootstrap.log").read_text()


def test_two_at_once_take_turns(repository: Path) -> None:
    (repository / ".venv/bootstrap-cpu.stamp").unlink()
    both = [
        subprocess.Popen(
            [sys.executable, str(repository / "bootstrap.py")],
            stderr=subprocess.PIPE,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(repository / "wheels"),
            },
        )
        for _ in range(2)
    ]
    said = sorted(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert sum("waiting for it" in text for text in said) == 1


def fake_python(folder: Path, name: str, version: str, *, with_venv: bool = True) -> Path:
    path = folder / name
    path.write_text(
        f'#!/bin/sh\ncase "$2" in\n*version_info*) echo {version};;\n'
        f"*ensurepip*) {'echo yes' if with_venv else 'exit 1'};;\n*realpath*) echo {path};;\nesac\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("wrong", ["3.10", "3.13"])
def test_a_wrong_python_is_replaced_by_a_right_one_on_path(
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


def test_without_a_right_python_the_line_names_the_right_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(fake_python(tmp_path, "python3", "3.13")))
    with pytest.raises(bootstrap.Failure, match=r"no python3\.11 or python3\.12 is on PATH") as e:
        bootstrap.find_python(str(tmp_path))
    assert e.value.code == bootstrap.EXIT_WRONG_PYTHON


def test_without_the_venv_module_the_line_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = fake_python(tmp_path, "python3", "3.11", with_venv=False)
    monkeypatch.setattr(sys, "executable", str(lacking))
    with pytest.raises(bootstrap.Failure, match=r"python3\.11-venv") as e:
        bootstrap.find_python(str(tmp_path))
    assert e.value.code == bootstrap.EXIT_NO_VENV_MODULE


def test_too_small_a_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(10**11, 10**11, 3 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(bootstrap.Failure, match=r"3\.0 GB free in .*, 8\.0 GB needed") as e:
        bootstrap.check_disk(bootstrap.Environment(tmp_path))
    assert e.value.code == bootstrap.EXIT_DISK_FULL
    assert list(tmp_path.iterdir()) == []


def test_without_libnuma_the_line_names_its_package() -> None:
    def absent(name: str) -> object:
        raise OSError(name)

    with pytest.raises(bootstrap.Failure) as told:
        bootstrap.check_libraries(load=absent)
    assert told.value.code == bootstrap.EXIT_NO_LIBRARY
    assert "apt-get install libnuma1" in str(told.value.line)


def test_a_disk_that_fills_up_is_told_apart_from_other_failures(tmp_path: Path) -> None:
    said = [
        "Collecting ray",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    ]
    failure = bootstrap.explain(said, bootstrap.Environment(tmp_path))
    assert failure.code == bootstrap.EXIT_DISK_FULL
    assert "\n" not in failure.line


def test_without_a_terminal_progress_is_a_line_each_ten_percent() -> None:
    stream = io.StringIO()
    bar = bootstrap.Bar(stream)
    for percent in range(101):
        bar.update(percent / 100, "installing")
    bar.close()
    assert stream.getvalue().splitlines() == [f"{p:3d} %  installing" for p in range(0, 101, 10)]


def test_on_a_terminal_progress_is_one_line_redrawn() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    bootstrap.Bar(stream).update(0.5, "installing")
    assert stream.getvalue().startswith("\r")
    assert "50 %" in stream.getvalue()
    assert "\n" not in stream.getvalue()


def test_progress_goes_on_while_pip_installs_in_silence(tmp_path: Path) -> None:
    packages = tmp_path / ".venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    steps = bootstrap.InstallSteps(bootstrap.Environment(tmp_path), packages=2)
    seen = [steps.fraction()]
    for line in ("Collecting one==1.0", "Collecting two==1.0"):
        steps.hear(line)
        seen.append(steps.fraction())
    steps.hear("Installing collected packages: one, two")
    for name in ("one", "two"):
        (packages / f"{name}-1.0.dist-info").mkdir()
        seen.append(steps.fraction())
    assert seen == sorted(set(seen))
    assert seen[-1] == pytest.approx(1.0)


def test_old_pythons_can_read_it() -> None:
    ast.parse((ROOT / "bootstrap.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("name", ["cpu.lock", "dev.lock", "gpu.lock"])
def test_locks_pin_hashes_and_name_no_index(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    pins = bootstrap.PIN.findall(text)
    assert len(pins) > 50
    assert len(re.findall(r"^\S+==.*\\\n +--hash=sha256:[0-9a-f]{64}", text, re.M)) == len(pins)
    assert "://" not in text
    assert "index-url" not in text


def test_what_serves_is_tested_at_the_same_pins() -> None:
    served, tested = (
        set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / name).read_text(), re.M))
        for name in ("cpu.lock", "dev.lock")
    )
    assert served <= tested
