"""Writes into the locks which files may be installed for each pin: `python requirements/hashes.py [LOCK ...]`, all of
ours without one.

Run it after changing a pin; it needs `uv` on PATH (`pip install uv`) and the package index. A pin gets the sha256 of
every wheel that CPython 3.11 or 3.12 on Linux x86-64 can use, and of the source where one of the two has no wheel. A
version with a local part (`+cpu`) is in no common index: its hashes are kept as they stand. `install.sh` takes no other
file (`pip install --require-hashes`).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (
    *sorted(ROOT.glob("requirements/*.lock")),
    *sorted(ROOT.glob("env_service/environments/*/requirements.lock")),
)
PYTHONS = ("3.11.9", "3.12.9")
PLATFORM = "x86_64-manylinux_2_40"
_ENTRY = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.+]+)(?P<hashes>(?:\s+\\\n\s+--hash=sha256:[0-9a-f]{64})*)$",
    re.MULTILINE,
)


def entries(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return version and sha256 hashes of each pin of a lock, by its normalised name.

    Raises:
        ValueError: a line is neither a comment nor a pin, or a package is pinned twice.
    """
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for match in _ENTRY.finditer(text):
        if normalised(match["name"]) in found:
            raise ValueError(f"{match['name']} is pinned twice")
        found[normalised(match["name"])] = match["version"], frozenset(re.findall(r"[0-9a-f]{64}", match["hashes"]))
    rest = [line for line in _ENTRY.sub("", text).splitlines() if line and not line.startswith("#")]
    if rest:
        raise ValueError(f"not a pin: {rest[0]}")
    return found


def normalised(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def files_of(pylock: dict[str, object]) -> dict[str, set[str]]:
    """Return what a pylock.toml allows for each package: its wheels, the source where it has none."""
    found: dict[str, set[str]] = {}
    packages: list[dict[str, object]] = pylock["packages"]  # type: ignore[assignment]
    for package in packages:
        files = package.get("wheels") or [package["sdist"]]
        found[normalised(str(package["name"]))] = {file["hashes"]["sha256"] for file in files}  # type: ignore[attr-defined]
    return found


def ask(pins: list[str]) -> dict[str, set[str]]:
    """Return the hashes of the files of all pins, from the index that uv is set up for.

    Raises:
        subprocess.CalledProcessError: uv cannot resolve them; it has said why.
    """
    found: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        wanted, made = Path(folder, "wanted.txt"), Path(folder, "pylock.toml")
        wanted.write_text("\n".join(pins))
        for python in PYTHONS:
            command = [
                "uv",
                "pip",
                "compile",
                "--quiet",
                "--no-deps",
                "--format",
                "pylock.toml",
                "-o",
                str(made),
                str(wanted),
            ]
            subprocess.run([*command, "--python-version", python, "--python-platform", PLATFORM], check=True)
            for name, hashes in files_of(tomllib.loads(made.read_text())).items():
                found.setdefault(name, set()).update(hashes)
    return found


def renewed(text: str) -> str:
    """Return a lock's text with the hashes of its pins as the index has them now."""
    known = entries(text)
    found = ask([f"{name}=={version}" for name, (version, _) in known.items() if "+" not in version])

    def written(match: re.Match[str]) -> str:
        name = normalised(match["name"])
        hashes = sorted(found.get(name) or known[name][1])
        return " \\\n".join(
            [f"{match['name']}=={match['version']}", *(f"    --hash=sha256:{value}" for value in hashes)]
        )

    return _ENTRY.sub(written, text)


def main(paths: list[Path]) -> int:
    """Renew the locks; returns the exit code."""
    for path in paths:
        text = path.read_text()
        after = renewed(text)
        path.write_text(after)
        print(f"{path.name}: {len(entries(after))} pins, {'changed' if after != text else 'as before'}")
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]] or [*LOCKS]))
