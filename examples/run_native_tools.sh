#!/usr/bin/env bash
# Native tool calls: installs what is missing, builds the policy once (7 minutes), then trains. Arguments go to the launcher.
#   bash examples/run_native_tools.sh --dry-run
#   bash examples/run_native_tools.sh trainer.total_training_steps=10
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/install.sh"
cd "$root"
policy=$root/experiments/seed_hermes
[[ -f $policy/build.json ]] || .venv/bin/python -m agentevolver.recipes.offline.seed.policy --syntax hermes --splits dev --out "$policy"
exec .venv/bin/python launcher.py --conf examples/native_tools.yaml "actor_rollout_ref.model.path=$policy" "$@"
