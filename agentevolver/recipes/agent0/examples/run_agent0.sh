#!/usr/bin/env bash
# Agent0: installs what is missing, builds the policy once, runs the rounds. Arguments go to the launcher.
#   bash agentevolver/recipes/agent0/examples/run_agent0.sh --dry-run
#   bash agentevolver/recipes/agent0/examples/run_agent0.sh recipes.agent0.rounds=1
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.." && pwd -P)
bash "$root/install.sh"
cd "$root"
policy=experiments/seed_calc
[[ -f $policy/build.json ]] || .venv/bin/python -m agentevolver.recipes.offline.seed.calc --out "$policy"
exec .venv/bin/python launcher.py --conf agentevolver/recipes/agent0/examples/agent0.yaml "$@"
