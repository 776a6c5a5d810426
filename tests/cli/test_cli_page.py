"""docs/cli.md is what the commands say of themselves."""

from pathlib import Path

from cli.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_has_every_command_and_option() -> None:
    """If it fails: make reference."""
    assert PAGE.read_text() == page()


def test_every_command_explains_all_of_its_options() -> None:
    """Also those that other commands share."""
    text = page()
    for command in ("preflight", "status", "diff", "accept", "logs"):
        section = text.partition(f"### `antefix k8s {command}`\n")[2].partition("\n#")[0]
        assert "`--kubeconfig FILE`: Kubeconfig file" in section


def test_exit_codes_are_a_table() -> None:
    assert "| 7 | `gate` | the loss of quality exceeds a limit | `evaluate` |" in page()
