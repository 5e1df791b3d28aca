#!/usr/bin/env bash
# Each part alone and all together on the built-in world, from nothing to the table of docs/results.md:
#   bash examples/ablation.sh                                       # hours on two cores; what is finished is not done again
#   SEEDS=1 STEPS=20 CONDITIONS="basic overall" bash examples/ablation.sh
# What is run stands in tables/ablation.yaml. Arguments go to every launch. The figure, where `install.sh --dev` has run:
#   python -m benchmarks.table_figures experiments/ablation/table.csv
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
bash install.sh
python=$root/.venv/bin/python
seeds=${SEEDS:-1 2 3} conditions=${CONDITIONS:-basic questioning navigating attributing overall}
"$python" -m agentevolver table examples/tables/ablation.yaml "$@" --train "trainer.total_training_steps=${STEPS:-80}" \
    --seeds "${seeds// /,}" --conditions "base,${conditions// /,}"
