#!/usr/bin/env bash
# Makes the venv that the appworld environment runs its workers in. Safe to run again: it does what is missing, and nothing else.
#
#   bash env_service/environments/appworld/setup.sh           venv and package (half a minute, 250 MB); no task data
#   bash env_service/environments/appworld/setup.sh --data    the same, then AppWorld's data, which its makers host (needs the network)
#   bash env_service/environments/appworld/setup.sh --force   throw the venv away first
#
# APPWORLD_VENV   where the venv goes          (default: .venvs/appworld in the repository)
# APPWORLD_ROOT   where data/ goes or lies     (default: ~/.cache/agentevolver/appworld)
# PYTHON          interpreter of the venv      (default: that of the repository's .venv, else python3.11 or python3.12; one of these two)
#
# Why a venv of its own: appworld needs pydantic 1, and the framework pydantic 2. It is only ever started as a process.
# What it unpacks may not be passed on unencrypted: read "Licence" in README.md before you put the venv or the data into an image.
set -euo pipefail
umask 022 # under root an agent's code runs as another user, who must read the venv and the data

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
repository="$(cd "$folder/../../.." && pwd)"
venv="${APPWORLD_VENV:-$repository/.venvs/appworld}"
root="${APPWORLD_ROOT:-$HOME/.cache/agentevolver/appworld}"
with_data=false
force=false
for argument in "$@"; do
    case "$argument" in
        --data) with_data=true ;;
        --force) force=true ;;
        *) echo "setup.sh: unknown argument '$argument'; known are --data and --force" >&2; exit 2 ;;
    esac
done

suits() { [[ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" =~ ^3\.1[12]$ ]]; }
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
    for python in "$repository/.venv/bin/python" python3.11 python3.12 python3; do
        if suits "$python"; then break; fi
    done
fi
if ! suits "$python"; then
    echo "setup.sh: $python is $("$python" --version 2>&1); requirements.lock is for Python 3.11 and 3.12 alone. Set PYTHON." >&2
    exit 1
fi

if $force; then rm -rf "$venv"; fi
marker="$venv/.agentevolver-lock"
if ! cmp -s "$folder/requirements.lock" "$marker"; then
    echo "Making $venv"
    [[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement "$folder/requirements.lock"
    # Unpacks the apps into the venv; APPWORLD_CACHE receives the package's own tests, which we do not need.
    APPWORLD_CACHE="$venv/appworld-cache" PYTHON_DOTENV_DISABLED=1 "$venv/bin/appworld" install >/dev/null
    cp "$folder/requirements.lock" "$marker"
fi
(cd "$venv" && PYTHON_DOTENV_DISABLED=1 APPWORLD_ROOT="$venv" bin/python -I -c \
    'import appworld, appworld.apps.supervisor.apis; print("AppWorld", appworld.__version__, "is ready in its venv")')

if $with_data; then
    if [[ -d "$root/data/tasks" ]]; then
        echo "The data is in $root/data already."
    else
        mkdir -p "$root"
        "$venv/bin/appworld" download data --root "$root"
        [[ -d "$root/data/tasks" ]] || { echo "setup.sh: the download left no $root/data/tasks" >&2; exit 1; }
    fi
elif [[ ! -d "$root/data/tasks" ]]; then
    echo "There is no task data in $root yet. Get it with: bash ${BASH_SOURCE[0]} --data"
fi
