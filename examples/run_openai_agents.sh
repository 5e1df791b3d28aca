#!/usr/bin/env bash
# An openai-agents agent: installs what is missing, builds the policy once (7 minutes), then trains. Arguments go to the launcher.
#   bash examples/run_openai_agents.sh --dry-run
#   bash examples/run_openai_agents.sh trainer.total_training_steps=10
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/install.sh"
cd "$root"
# Without what it depends on, which is there: its pins would replace some of those that this project was tested with.
.venv/bin/python -c "import agents" 2>/dev/null ||
    .venv/bin/python -m pip install --quiet --no-deps $(grep -oE '^(openai-agents|griffelib)==[0-9.]+' requirements/agents.lock)
policy=$root/experiments/seed_hermes
[[ -f $policy/build.json ]] || .venv/bin/python -m agentevolver.recipes.offline.seed.policy --syntax hermes --splits dev --out "$policy"
exec .venv/bin/python launcher.py --conf examples/openai_agents.yaml "actor_rollout_ref.model.path=$policy" "$@"
