"""The file system that the interpreter sees: Python's library, shared libraries, chosen packages, a scratch folder.

Only `/scratch` is writable. The Python installation keeps its paths, so that the running interpreter finds its library;
packages appear under `/packages`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import linux

SCRATCH = "/scratch"
PACKAGES = "/packages"

_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/run", "/var/tmp", "/tmp")
_LIBRARY_LINKS = ("/lib", "/lib64", "/usr/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_DATA = ("/usr/share/zoneinfo",)
_READ_ONLY = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV


def _standard_library() -> list[str]:
    main = os.path.dirname(os.path.realpath(os.__file__))
    dynload = [os.path.realpath(path) for path in sys.path if path.endswith("lib-dynload") and os.path.isdir(path)]
    return [main, *(path for path in dynload if not path.startswith(main + "/"))]


def _loaded_library_folders() -> set[str]:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = [
            line.split(maxsplit=5)[5].strip()
            for line in maps
            if line.rstrip().endswith((".so", ".so.6")) or ".so." in line
        ]
    return {os.path.dirname(os.path.realpath(path)) for path in paths if path.startswith("/")}


def _bind(root: str, source: str, target: str | None = None) -> None:
    """Bind a host folder or file at `target` (default: the same path) inside `root`, read-only."""
    place = root + (target or source)
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o444))
    linux.mount(source, place, None, linux.MS_BIND | linux.MS_REC)
    linux.lock_mount(place, _READ_ONLY, recursive=True)


def _bind_device(root: str, source: str) -> None:
    place = root + source
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o444))
    linux.mount(source, place, None, linux.MS_BIND)
    linux.lock_mount(place, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID, recursive=False)


def _bind_libraries_of(root: str, folder: str) -> None:
    """Bind only the shared libraries of a mixed folder (the `lib` of a Python prefix)."""
    with os.scandir(folder) as entries:
        libraries = [entry for entry in entries if entry.name.startswith("lib") and ".so" in entry.name]
    os.makedirs(root + folder, exist_ok=True)
    for entry in libraries:
        if entry.is_symlink() and os.sep not in os.readlink(entry.path):
            os.symlink(os.readlink(entry.path), root + entry.path)
        elif entry.is_file():
            _bind(root, entry.path)


def _hide_site_packages(root: str, library: str) -> None:
    """Cover the installed packages of the Python installation."""
    for name in ("site-packages", "dist-packages"):
        place = f"{root}{library}/{name}"
        if os.path.isdir(place):
            linux.mount("none", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=4k,mode=755")
            linux.lock_mount(place, _READ_ONLY, recursive=False)


def _mount_point(sources: list[str]) -> str:
    for path in _MOUNT_POINTS:
        if (
            os.path.isdir(path)
            and not os.path.islink(path)
            and not any(source.startswith(path + "/") for source in sources)
        ):
            return path
    raise linux.SandboxSetupError(f"no folder to build the view on; one of {', '.join(_MOUNT_POINTS)} must exist")


def _recreate_library_links(root: str) -> None:
    for link in _LIBRARY_LINKS:
        if os.path.islink(link) and not os.path.lexists(root + link):
            os.makedirs(os.path.dirname(root + link), exist_ok=True)
            os.symlink(os.readlink(link), root + link)


def enter(packages: list[str], scratch_mb: int, shown: Sequence[str] = (), writable: Sequence[str] = ()) -> None:
    """Build the view in this process's mount namespace and make it the root; no host path remains reachable.

    `packages`: host paths of package folders or modules. `shown` (read-only) and `writable` paths keep their places.
    Raises SandboxSetupError.
    """
    library = _standard_library()
    prefix_lib = os.path.dirname(library[0])
    folders = sorted(_loaded_library_folders() - {prefix_lib, *library})
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    root = _mount_point([*library, *folders, *packages, *shown, *writable])
    linux.mount("none", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
    os.umask(0o022)
    for folder in library:
        _bind(root, folder)
        _hide_site_packages(root, folder)
    _bind_libraries_of(root, prefix_lib)
    for folder in folders:
        if not any(f"{folder}/".startswith(parent + "/") for parent in (*library, *shown)):
            _bind(root, folder)
    _recreate_library_links(root)
    for path in packages:
        _bind(root, path, f"{PACKAGES}/{os.path.basename(path)}")
    for path in (*_DATA, *shown):
        if os.path.exists(path):
            _bind(root, path)
    for path in writable:
        os.makedirs(root + path, exist_ok=True)
        linux.mount(path, root + path, None, linux.MS_BIND)
        linux.lock_mount(root + path, linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV, recursive=False)
    for path in _DEVICES:
        _bind_device(root, path)
    _finish(root, scratch_mb)


def _finish(root: str, scratch_mb: int) -> None:
    os.mkdir(root + SCRATCH)
    options = f"size={scratch_mb}m,nr_inodes=4096,mode=777"
    linux.mount("none", root + SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, options)
    if not os.path.lexists(root + "/tmp"):  # a folder that is shown may lie there
        os.symlink(SCRATCH.lstrip("/"), root + "/tmp")
    linux.lock_mount(root, _READ_ONLY, recursive=False)
    linux.pivot_into(root)
