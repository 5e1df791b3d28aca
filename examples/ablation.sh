#!/usr/bin/env bash
# Each part alone and all together: the table of docs/results.md#the-whole-loop. About an hour a seed on two cores; resumes.
#   bash examples/ablation.sh
#   SEEDS=1 STEPS=20 CONDITIONS="basic overall" bash examples/ablation.sh
# The conditions are in tables/ablation.yaml. Arguments go to every launch.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
bash install.sh
python=$root/.venv/bin/python
seeds=${SEEDS:-1 2 3} conditions=${CONDITIONS:-basic questioning navigating attributing overall}
"$python" -m agentevolver table examples/tables/ablation.yaml "$@" --train "trainer.total_training_steps=${STEPS:-80}" \
    --seeds "${seeds// /,}" --conditions "base,${conditions// /,}"
