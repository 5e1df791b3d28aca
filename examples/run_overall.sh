#!/usr/bin/env bash
# The whole loop: installs what is missing, then trains. Arguments go to the launcher.
#   bash examples/run_overall.sh --dry-run
#   bash examples/run_overall.sh trainer.total_training_steps=10
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/install.sh"
exec "$root/.venv/bin/python" "$root/launcher.py" --conf "$root/examples/overall.yaml" "$@"
