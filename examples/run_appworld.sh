#!/usr/bin/env bash
# AppWorld from nothing: installs what is missing, the environment and its data too, then trains. Arguments go to the launcher:
#   bash examples/run_appworld.sh --dry-run
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/install.sh"
PYTHON=$root/.venv/bin/python bash "$root/env_service/environments/appworld/setup.sh" --data
exec "$root/.venv/bin/python" "$root/launcher.py" --conf "$root/examples/appworld.yaml" "$@"
