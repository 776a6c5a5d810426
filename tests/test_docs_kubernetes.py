"""docs/kubernetes and the chart's README: what they name exists, and what they show is printed.

Commands are read from blocks marked sh and console, values from those marked yaml, keys and links
from the text.
"""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from cli.main import app
from deployments.fleet.fleet import Fleet
from k8s.needs.needs import needs_of
from tests.helm.helm import (
    CHART,
    REGISTRY,
    ROOT,
    HelmError,
    defaults,
    merged,
    of_kind,
    put_on_path,
    render,
    run,
)
from tests.k8s.api import Api
from tests.k8s.objects import (
    RAYCLUSTERS,
    RAYSERVICES,
    Object,
    node,
    pod,
)
from tests.k8s.release_objects import cluster_of
from tests.kubernetes_long import measured
from tests.shell_blocks import shell_blocks
from tests.shipped import filled_in
from tests.some import some

DOCS = ROOT / "docs" / "kubernetes"
INSTALL, SIZE, UPGRADE, TROUBLESHOOT = (
    DOCS / f"{name}.md" for name in ("install", "size", "upgrade", "troubleshoot")
)
PAGES = [*sorted(DOCS.glob("*.md")), CHART / "README.md"]
SMALL = "fleet: {name: small, pools: {chat: {model: org/model}}}"
TESTED = DOCS / "tested.md"
SINGLE_NODE = CHART / "values" / "single-node-a100.yaml"

of_each_page = pytest.mark.parametrize(
    "page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES]
)


def blocks(page: Path, language: str) -> list[str]:
    """As a reader would type them, with custom names."""
    return re.findall(rf"^```{language}\n(.*?)^```$", filled_in(page.read_text()), re.M | re.S)


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """Its command lines in sh blocks, as words."""
    for text in blocks(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == [program]:
                yield words


def outputs(page: Path) -> dict[str, list[str]]:
    """What console blocks show, by their command, which is their first line."""
    shown: dict[str, list[str]] = {}
    for text in blocks(page, "console"):
        first, _, rest = text.partition("\n")
        shown.setdefault(first.removeprefix("$ "), []).append(rest.rstrip())
    return shown


def options(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def lines(text: str) -> list[str]:
    """Sorted, as Helm names faults in any order; no spaces at their ends, as editors keep none."""
    return sorted(line.rstrip() for line in text.strip().splitlines())


@cache
def options_of_helm(subcommand: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", run(subcommand, "--help")))


@cache
def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them, and those of former headings."""
    text = page.read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles} | {
        *re.findall(r'^<a id="([^"]+)"></a>$', text, re.M)
    }


@of_each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_each_page_says_which_of_its_shell_blocks_no_cluster_runs_and_why() -> None:
    for page in PAGES:
        marked = [block for block in shell_blocks(page) if block.not_run]
        assert len(marked) == page.read_text().count("<!-- not run"), page
        assert [filled_in(b.text) for b in shell_blocks(page)] == blocks(page, "sh"), page


@pytest.mark.parametrize(
    "page", ["README.md", "docs/laptop.md", "docs/kubernetes/a100-clusters.md"]
)
def test_a_shell_block_of_a_tutorial_says_why_it_is_not_run(page: str) -> None:
    assert all(block.not_run for block in some(shell_blocks(ROOT / page)))


def test_every_test_of_releases_has_its_line_among_the_figures() -> None:
    rows = re.findall(r"^\| (.+?) \|", TESTED.read_text(), re.M)
    named = [test.what for test in measured.tests()]
    assert [row for row in rows if row in named] == named, (
        "python -m tests.kubernetes_long.measured"
    )


@of_each_page
def test_helm_has_every_option_that_is_given_to_it(page: Path) -> None:
    for words in commands(page, "helm"):
        assert options(words) <= options_of_helm(words[1]), words


@of_each_page
def test_the_chart_takes_the_values_that_commands_give_it(page: Path) -> None:
    for words in commands(page, "helm"):
        if "helm/antefix" not in words:
            continue
        pairs = list(pairwise(words))
        files = [given for option, given in pairs if option == "--values"]
        assert files or "--reuse-values" in words, words
        named = [("--values", str(ROOT / given)) for given in files if "/" in given]
        named = named or [("--values", str(SINGLE_NODE))]
        # a reader's own file has what was copied from here
        if "--reuse-values" in words or any("/" not in given for given in files):
            named.append(REGISTRY)
        set_ = [pair for pair in pairs if pair[0] in ("--set", "--set-string")]
        run("template", words[2], str(CHART), *(word for pair in named + set_ for word in pair))


@of_each_page
def test_the_chart_takes_every_piece_of_values(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "yaml")):
        piece = tmp_path / f"{number}.yaml"
        piece.write_text(yaml.safe_dump(values_in(yaml.safe_load(text))))
        render(SINGLE_NODE, "--values", str(piece))


def values_in(block: Object) -> Object:
    """A block is values, or an object of Kubernetes: Argo CD's and Flux's hold some."""
    helm_of_argo = block.get("spec", {}).get("source", {}).get("helm", {})
    held: Object = helm_of_argo.get("valuesObject") or block.get("spec", {}).get("values", {})
    return held if "kind" in block else block


def test_values_in_git_for_argo_and_flux_render_no_secret() -> None:
    held = [values_in(yaml.safe_load(text)) for text in blocks(DOCS / "gitops.md", "yaml")]
    assert len(held) == 3
    for values in held:
        kinds = {made["kind"] for made in render(merged(yaml.safe_load(SMALL), values))}
        assert "Secret" not in kinds


@of_each_page
def test_antefix_has_every_command_and_option(page: Path) -> None:
    for words in commands(page, "antefix"):
        command: Any = typer.main.get_command(app)
        at = 1
        while hasattr(command, "commands"):
            command = command.commands[words[at]]
            at += 1
        known = {option for parameter in command.params for option in parameter.opts}
        assert options(words) <= known, words


KEY = re.compile(r"`([a-zA-Z]+(?:\.[\w<>*-]+)+)(?:: [^`]*)?`")


def test_every_key_that_is_named_is_one_of_the_charts() -> None:
    schema, own = values_schema(), {*defaults(), "autoscaler", "engine", "head", "podSecurity"}
    named = {
        f"{page.name}: {path}": path.split(".")
        for page in PAGES
        for path in KEY.findall(page.read_text())
        if path.split(".")[0] in own
    }
    assert not [place for place, path in some(named.items()) if not is_key(schema, path)]


@pytest.mark.parametrize("path", ["ingress.enable", "gateway.replicas.most", "metrics.podMonitr"])
def test_a_key_that_the_chart_does_not_have_is_found(path: str) -> None:
    assert KEY.findall(f"Set `{path}` or `{path}: true`.") == [path, path]
    assert not is_key(values_schema(), path.split("."))


def values_schema() -> Object:
    schema: Object = json.loads((CHART / "values.schema.json").read_text())
    return schema


def is_key(schema: Object, path: list[str]) -> bool:
    """Whether the schema has it; what it leaves open, such as labels, may hold anything."""
    if not path:
        return True
    named, *rest = path
    if named in schema.get("properties", {}):
        return is_key(schema["properties"][named], rest)
    for of_any_name in schema.get("patternProperties", {}).values():
        return is_key(of_any_name, rest)
    return schema.get("additionalProperties", "object" in schema.get("type", ())) is not False


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (1, "laptop-kind"),
        (2, "single-node-a100"),
        (3, "three-nodes-a100"),
        (4, "two-nodes-a100"),
        (5, "multi-node-a100"),
        (6, "eight-nodes-a100"),
    ],
)
def test_the_sizes_on_the_page_are_those_of_the_values(column: int, name: str) -> None:
    file = CHART / "values" / f"{name}.yaml"
    values = merged(defaults(), yaml.safe_load(file.read_text()))
    fleet = Fleet.model_validate(values["fleet"])
    groups = needs_of(render(file), fleet, values).groups
    engines = [group for group in groups if group.name in fleet.pools]
    rows = [line.strip("| ").split(" | ") for line in SIZE.read_text().splitlines()]
    shown = {row[0]: row[column] for row in rows if len(row) == 7}
    assert shown["initial engine pods"] == str(sum(g.count for g in engines))
    assert shown["maximum engine pods"] == str(sum(g.most for g in engines))
    assert shown["initial GPUs"] == str(sum(g.count * g.gpus for g in engines))
    cores, memory = (sum(g.count * g.requests[r] for g in groups) for r in ("cpu", "memory"))
    assert float(shown["initial CPU cores of all pods"]) == float(cores)
    assert float(shown["initial GiB of memory of all pods"]) == float(memory / 2**30)


@pytest.mark.parametrize("page", [TROUBLESHOOT], ids=lambda page: page.stem)
def test_helm_refuses_values_with_the_text_that_the_page_shows(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    refused = {c: texts for c, texts in outputs(page).items() if c.startswith("helm template")}
    assert refused
    for command, (text,) in refused.items():
        with pytest.raises(HelmError) as error:
            run(*shlex.split(command)[1:])
        assert lines(str(error.value)) == lines(text)


def test_preflight_finds_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    put_on_path(monkeypatch)
    command = "antefix k8s preflight --namespace antefix --values my-values.yaml"
    (text,) = outputs(INSTALL)[command]
    with Api(node("cpu-1"), node("cpu-2")) as api:
        quick = ["--no-engine-args", "--kubeconfig", str(api.kubeconfig)]
        mine = command.replace("my-values.yaml", f"{SINGLE_NODE} --values {REGISTRY[1]}")
        done = CliRunner().invoke(app, [*shlex.split(mine)[1:], *quick])
    assert done.output.strip() == text


def test_a_diff_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    put_on_path(monkeypatch)
    several = CHART / "values" / "multi-node-a100.yaml"
    before = ("--values", str(several), *REGISTRY)
    made = run("template", "antefix", str(CHART), "--namespace", "antefix", *before)
    service = of_kind([one for one in yaml.safe_load_all(made) if one], "RayService")
    service["metadata"]["namespace"] = "antefix"
    service["status"] = {"activeServiceStatus": {"rayClusterName": "antefix-7k2vd"}}
    cluster = cluster_of(service, "antefix-7k2vd")
    cluster["metadata"] |= {"namespace": "antefix"}
    labels = service["metadata"]["labels"]
    running = [
        pod(
            f"{of['groupName']}-{i}",
            namespace="antefix",
            labels=labels,
            spec=of["template"]["spec"],
        )
        for of in cluster["spec"]["workerGroupSpecs"]
        for i in range(of["replicas"])
    ]
    after = tmp_path / "my-values.yaml"
    after.write_text("image: {registry: registry.acme.internal, gpu: {tag: 0.2.0}}")
    ((command, (text,)),) = [
        (command, texts) for command, texts in outputs(UPGRADE).items() if "k8s diff" in command
    ]
    with Api(RAYSERVICES, RAYCLUSTERS, service, cluster, *running) as api:
        mine = command.replace("my-values.yaml", str(after))
        asked = [*shlex.split(mine)[1:], "--kubeconfig", str(api.kubeconfig)]
        done = CliRunner().invoke(app, asked)
    assert done.output.strip() == text
