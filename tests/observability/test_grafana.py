"""What a push, a diff and a pull do with a Grafana, which is a fake one here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import Problem
from observability import grafana
from observability.grafana import Compared, FoundDashboard, Grafana, PushState
from tests.fakes.grafana import FakeGrafana, running_grafana

OURS: dict[str, Any] = {"title": "Routing", "panels": [{"id": 1, "title": "Hits"}]}


@pytest.fixture
def fake() -> Iterator[FakeGrafana]:
    with running_grafana() as fake:
        yield fake


@pytest.fixture
def there(fake: FakeGrafana) -> Grafana:
    return Grafana(fake.url, "glsa_editor")


def pushed(there: Grafana, ours: list[Any]) -> list[PushState]:
    """What the dashboards were before; afterwards they are those of Antefix."""
    uid = there.folder("Antefix") or there.create_folder("Antefix")
    states = []
    for compared in there.compare(ours, uid):
        states.append(compared.state)
        if compared.state is not PushState.SAME:
            there.save(compared, uid)
    return states


def found_dashboard(content: dict[str, Any], message: str) -> FoundDashboard:
    return FoundDashboard(uid="u", content=content, version=3, message=message, author="jo")


def by_push(dashboard: dict[str, Any]) -> str:
    return f"antefix push {grafana.digest(dashboard)}"


@pytest.mark.parametrize(
    ("theirs", "state"),
    [
        (None, PushState.MISSING),
        (found_dashboard(OURS, by_push(OURS)), PushState.SAME),
        (
            found_dashboard({**OURS, "id": 7, "uid": "u", "version": 3}, by_push(OURS)),
            PushState.SAME,
        ),
        (found_dashboard(OURS, ""), PushState.SAME),
        (found_dashboard({**OURS, "schemaVersion": 99}, by_push(OURS)), PushState.SAME),
        (
            found_dashboard({**OURS, "panels": []}, by_push({**OURS, "panels": []})),
            PushState.OUTDATED,
        ),
        (found_dashboard({**OURS, "panels": []}, ""), PushState.EDITED),
        (found_dashboard({**OURS, "panels": []}, "antefix push, says jo"), PushState.EDITED),
    ],
    ids=[
        "not there",
        "as pushed",
        "as pushed, with what Grafana adds",
        "the same, by hand",
        "as pushed, but Grafana stores it in another form",
        "an earlier push",
        "edited in the browser",
        "edited, with a message like Antefix's",
    ],
)
def test_a_dashboard_was_edited_when_its_latest_version_is_not_a_push(
    theirs: FoundDashboard | None, state: PushState
) -> None:
    compared = Compared("Routing", OURS, theirs)
    assert compared.state is state
    assert bool(compared.diff()) == (state is not PushState.SAME)


def test_a_diff_shows_what_a_push_would_change_in_grafana() -> None:
    theirs = {**OURS, "panels": [{"id": 1, "title": "Hit rate"}]}
    lines = Compared("Routing", OURS, found_dashboard(theirs, "")).diff().splitlines()
    assert lines[:2] == ["--- Grafana/Routing", "+++ here/Routing"]
    assert '-      "title": "Hit rate"' in lines
    assert '+      "title": "Hits"' in lines


def test_the_data_source_that_was_chosen_in_a_grafana_is_no_difference() -> None:
    def with_variable(**more: Any) -> dict[str, Any]:
        variable = {"name": "datasource", "type": "datasource", "query": "prometheus", **more}
        return {**OURS, "templating": {"list": [variable]}}

    chosen = with_variable(current={"text": "Antefix", "value": "uid-9"}, options=[])
    assert grafana.as_text(chosen) == grafana.as_text(with_variable())


def test_a_second_push_finds_nothing_to_do(fake: FakeGrafana, there: Grafana) -> None:
    shipped = list(grafana.read())
    assert pushed(there, shipped) == [PushState.MISSING] * 5
    saves = len(fake.saves)
    assert pushed(there, shipped) == [PushState.SAME] * 5
    assert len(fake.saves) == saves == 5


def test_an_update_keeps_the_uid(fake: FakeGrafana, there: Grafana) -> None:
    pushed(there, [OURS])
    uid = fake.dashboard("Routing")["uid"]
    newer = {**OURS, "panels": []}
    assert pushed(there, [newer]) == [PushState.OUTDATED]
    assert fake.dashboard("Routing")["uid"] == uid
    assert fake.dashboard("Routing")["panels"] == []


def test_an_edit_in_the_browser_is_seen_with_its_author(fake: FakeGrafana, there: Grafana) -> None:
    pushed(there, [OURS])
    fake.edit("Routing", author="jo", panels=[])
    (compared,) = there.compare([OURS], there.folder("Antefix"))
    assert compared.state is PushState.EDITED
    assert compared.theirs is not None and compared.theirs.author == "jo"


def test_an_edit_between_reading_and_saving_is_not_overwritten(
    fake: FakeGrafana, there: Grafana
) -> None:
    pushed(there, [OURS])
    fake.between = lambda: fake.edit("Routing", panels=["mine"])
    with pytest.raises(
        Problem, match="did not save Routing: it was saved elsewhere in the meantime"
    ):
        pushed(there, [{**OURS, "panels": []}])
    assert fake.dashboard("Routing")["panels"] == ["mine"]


def test_versions_are_read_from_a_grafana_that_returns_a_bare_list(
    fake: FakeGrafana, there: Grafana
) -> None:
    fake.versions_as_list = True
    assert pushed(there, [OURS]) == [PushState.MISSING]
    assert pushed(there, [{**OURS, "panels": []}]) == [PushState.OUTDATED]


def test_a_folder_of_many_dashboards_is_listed_to_its_end(
    fake: FakeGrafana, there: Grafana
) -> None:
    fake.folders.append({"uid": "full", "title": "Antefix"})
    for number in range(1001):
        content = {"uid": f"d{number}", "title": f"d{number}", "version": 1, "id": number}
        save = {"dashboard": content, "folderUid": "full", "message": "", "author": ""}
        fake.saves.append(save)
    assert len(there.titles("full")) == 1001


def test_dashboards_of_other_folders_are_left_alone(fake: FakeGrafana, there: Grafana) -> None:
    fake.folders.append({"uid": "other", "title": "Other"})
    body = {"dashboard": {**OURS, "uid": "u", "version": 1}, "folderUid": "other"}
    fake.saves.append({**body, "message": "", "author": "jo"})
    assert pushed(there, [OURS]) == [PushState.MISSING]
    assert there.titles("other") == {"Routing": "u"}


def test_two_dashboards_with_one_title_are_refused(fake: FakeGrafana, there: Grafana) -> None:
    fake.folders.append({"uid": "f", "title": "Antefix"})
    for uid in ("a", "b"):
        content = {**OURS, "uid": uid, "version": 1}
        fake.saves.append({"dashboard": content, "folderUid": "f", "message": "", "author": ""})
    with pytest.raises(Problem, match=r"several dashboards in .* are called Routing"):
        there.compare([OURS], "f")


def test_the_data_source_is_made_once_and_moved_when_the_address_changes(
    fake: FakeGrafana,
) -> None:
    admin = Grafana(fake.url, "glsa_admin")
    steps = [("http://a:9090", True), ("http://a:9090", False), ("http://b:9090", True)]
    for url, changed in steps:
        assert admin.point_datasource(url) is changed
    (source,) = fake.sources
    assert (source["name"], source["type"], source["url"]) == (
        "Antefix",
        "prometheus",
        "http://b:9090",
    )


@pytest.mark.parametrize(
    ("token", "problem", "remedy"),
    [
        ("glsa_none", "rejects the token", "GRAFANA_TOKEN"),
        ("glsa_viewer", "the token may not create the folder Antefix", "role Editor"),
    ],
)
def test_an_invalid_token_or_one_without_permissions_is_explained(
    fake: FakeGrafana, token: str, problem: str, remedy: str
) -> None:
    with pytest.raises(Problem) as error:
        pushed(Grafana(fake.url, token), [OURS])
    assert problem in error.value.message and remedy in error.value.remedy
    assert token not in str(error.value)


def test_a_data_source_needs_another_role(there: Grafana) -> None:
    with pytest.raises(Problem, match="role Admin"):
        there.point_datasource("http://a:9090")


@pytest.mark.parametrize("version", ["9.5.2", "10.4.0"])
def test_an_old_grafana_is_refused(fake: FakeGrafana, there: Grafana, version: str) -> None:
    fake.version = version
    with pytest.raises(Problem, match=f"Grafana {version} at .* is too old"):
        there.check()


@pytest.mark.parametrize("version", ["11.0.0", "13.1.0-pre", ""])
def test_a_newer_grafana_and_one_that_hides_its_version_are_accepted(
    fake: FakeGrafana, there: Grafana, version: str
) -> None:
    fake.version = version
    there.check()


def test_a_server_that_is_no_grafana_is_explained(fake: FakeGrafana) -> None:
    with pytest.raises(Problem) as error:
        Grafana(f"{fake.url}/elsewhere", "glsa_editor").check()
    assert "GRAFANA_URL" in error.value.remedy or "report its version" in error.value.message


def test_an_unreachable_grafana_is_reported_without_the_password_of_its_address() -> None:
    with pytest.raises(Problem) as error:
        Grafana("http://admin:hunter2@127.0.0.1:1", "glsa_editor").check()
    assert error.value.message == "Grafana does not answer at http://127.0.0.1:1"
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("url", ["", "grafana", "ftp://grafana", "http://", "http://grafana:x"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(Problem, match="GRAFANA_URL is not a URL"):
        Grafana(url, "glsa_editor")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "contains no dashboards"),
        ({"a.json": "{"}, "a.json cannot be read"),
        ({"a.json": "[]"}, "a.json is not a dashboard"),
        ({"a.json": '{"panels": []}'}, "a.json is not a dashboard"),
        ({"a.json": json.dumps(OURS), "b.json": json.dumps(OURS)}, "are called Routing"),
    ],
)
def test_a_folder_that_cannot_be_pushed_is_explained(
    tmp_path: Path, files: dict[str, str], problem: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(Problem, match=problem):
        grafana.read(tmp_path)
