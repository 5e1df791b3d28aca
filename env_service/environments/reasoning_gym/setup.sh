#!/usr/bin/env bash
# Puts the package reasoning-gym and what it needs into a folder of its own (350 MB), which the environment's sandbox sees; nothing of it
# gets into the Python of the service. Safe to run again.
#
#   bash env_service/environments/reasoning_gym/setup.sh
#
# REASONING_GYM_ROOT   the folder                            (default: .venvs/reasoning_gym in the repository)
# PYTHON               the interpreter that runs the service (default: that of the repository's .venv, else python)
set -euo pipefail
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
root="${REASONING_GYM_ROOT:-$repository/.venvs/reasoning_gym}"
python="${PYTHON:-$repository/.venv/bin/python}"
[[ -x "$python" ]] || python=python
version=0.1.25
if [[ ! -d "$root/reasoning_gym-$version.dist-info" ]]; then
    rm -rf "$root"
    "$python" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --target "$root" "reasoning-gym==$version"
fi
cd "$repository"
REASONING_GYM_ROOT="$root" "$python" -c \
    'from env_service.environments.reasoning_gym.library import Library; print(len(Library.shared().levels), "generators are ready")'
