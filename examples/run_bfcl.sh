#!/usr/bin/env bash
# BFCL v3 multi-turn from nothing: installs what is missing, the environment too, then trains. Arguments go to the launcher:
#   bash examples/run_bfcl.sh --dry-run
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/install.sh"
PYTHON=$root/.venv/bin/python bash "$root/env_service/environments/bfcl/setup.sh"
exec "$root/.venv/bin/python" "$root/launcher.py" --conf "$root/examples/bfcl.yaml" "$@"
