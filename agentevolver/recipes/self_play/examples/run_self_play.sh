#!/usr/bin/env bash
# Self-play in Nim: TextArena, 2,000 games of random legal moves, a policy that imitates them, training. Resumes. Arguments go to the launcher.
#   bash agentevolver/recipes/self_play/examples/run_self_play.sh --dry-run
#   bash agentevolver/recipes/self_play/examples/run_self_play.sh trainer.total_training_steps=20
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.."
bash install.sh
python=.venv/bin/python
start=experiments/self_play/start

bash env_service/environments/textarena/setup.sh
if [[ ! -f "$start/policy/build.json" ]]; then
    "$python" -m env_service.environments.textarena.demonstrate --game Nim-v0 --games 2000 --out "$start/demos.jsonl"
    "$python" -m agentevolver.recipes.offline.seed --env env_service.environments.textarena.env:TextarenaEnv --steps 100 --demos "$start/demos.jsonl"
fi
exec "$python" launcher.py --conf agentevolver/recipes/self_play/examples/self_play.yaml "$@"
