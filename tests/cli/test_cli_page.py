"""docs/cli.md is what the commands say of themselves."""

from pathlib import Path

from cli.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_has_every_command_and_option() -> None:
    """If it fails: make reference."""
    assert PAGE.read_text() == page()


def test_a_shared_option_is_explained_once_and_named_by_its_commands() -> None:
    text = page()
    assert text.count("`--kubeconfig <str>`") == 1
    accept = text.partition("### `antefix k8s accept`\n")[2].partition("\n#")[0]
    assert "Common: " in accept and "`--kubeconfig`" in accept
