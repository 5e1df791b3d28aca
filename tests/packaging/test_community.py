"""What an image of this repository leaves out."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_image_holds_no_secrets_and_no_environment_of_the_host():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".env", ".venv", ".git", "experiments"} <= set(ignored)
