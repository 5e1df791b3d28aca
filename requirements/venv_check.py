"""What install.sh asks of the virtual environment that runs this file; standard library only, so that it works in an
empty one.

`mend` forgets distributions that an interrupted pip left incomplete, so that pip installs them again (it would take
them for complete: their metadata is there). `no-cuda` fails if a CUDA distribution is present. `report` imports the
stack and prints versions and device. Exit code 0 means yes; every other answer is a line on stderr and exit code 1.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path


def incomplete(distribution: metadata.Distribution) -> str | None:
    """Return why the distribution is incomplete, or None: pip writes RECORD last, and lists in it every file with its
    size."""
    if distribution.read_text("RECORD") is None:
        return "its RECORD is missing"
    for file in distribution.files or []:
        path = Path(str(distribution.locate_file(file)))
        try:
            size = os.stat(path).st_size
        except OSError:
            if file.suffix == ".pyc":
                continue
            return f"{file} is missing"
        if file.size is not None and size != file.size:
            return f"{file} has {size} bytes instead of {file.size}"
    return None


def mend(site_packages: Path) -> list[str]:
    """Remove the metadata of incomplete distributions in the folder, and pip's own leftovers; return what was found."""
    found = []
    for info in sorted(site_packages.glob("*.dist-info")):
        reason = incomplete(metadata.PathDistribution(info))
        if reason is not None:
            found.append(f"{info.name}: {reason}")
            shutil.rmtree(info)
    # While it replaces a package, pip keeps the old one under a name that begins with a tilde.
    for leftover in site_packages.glob("~*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return found


def cuda_distributions() -> list[str]:
    """Return the names of installed distributions that only a machine with a GPU has use for."""
    names = {str(distribution.metadata["Name"]).lower() for distribution in metadata.distributions()}
    found = sorted(name for name in names if name.startswith(("nvidia-", "cuda-")))
    version = metadata.version("torch") if "torch" in names else ""
    return found + ([f"torch {version}"] if version and not version.endswith("+cpu") else [])


def report() -> list[str]:
    """Import the stack; return lines with the versions, the device and the plugin."""
    torch = importlib.import_module("torch")
    lines = [f"python {sys.version.split()[0]}, torch {torch.__version__}"]
    for name in ("vllm", "verl", "ray", "transformers"):
        importlib.import_module(name)
        lines.append(f"{name} {metadata.version(name)}")
    importlib.import_module("agentevolver.trainer.verl_plugin")
    plugins = [point.value for point in metadata.entry_points(group="verl.plugins") if point.name == "agentevolver"]
    if plugins != ["agentevolver.trainer.verl_plugin"]:
        raise ImportError(f"the entry point of agentevolver in the group verl.plugins is {plugins}")
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return [*lines, f"device: {device}"]


def main(command: str) -> int:
    """Run one of the three commands; see the module's docstring."""
    if command == "mend":
        site_packages = Path(next(path for path in sys.path if path.endswith("site-packages")))
        for line in mend(site_packages):
            print(f"[install]   will install again: {line}")
        return 0
    if command == "no-cuda":
        found = cuda_distributions()
        if found:
            print(f"[install]   found {', '.join(found)}", file=sys.stderr)
        return 1 if found else 0
    if command == "report":
        for line in report():
            print(f"[install]   {line}")
        return 0
    print(f"unknown command {command!r}: mend, no-cuda or report", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) == 2 else ""))
