#!/usr/bin/env bash
# A real model on the CPU: installs what is missing, trains from the model to a measured gain, and resumes where it was stopped.
#   bash examples/run_small_model.sh                                             # SmolLM2-135M-Instruct from the hub
#   bash examples/run_small_model.sh actor_rollout_ref.model.path=FOLDER         # a folder, or another model
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/install.sh"
cd "$root"
exec .venv/bin/python launcher.py --conf examples/small_model.yaml "$@"
