#!/usr/bin/env bash
# The tables of docs/protocol.md. About 18 hours on two cores; resumes.
#   bash examples/paper_tables.sh
#   SEEDS=1 CONDITIONS="grpo overall" bash examples/paper_tables.sh
#   JOBS=2 KNOWN=docs/tables/paper.csv bash examples/paper_tables.sh  # two runs side by side; what is in the csv is not run again
# The conditions are in tables/paper.yaml. Arguments go to every launch. Differences are written from grpo, and from q.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
bash install.sh
python=$root/.venv/bin/python
if [[ -z ${CONDITIONS:-} || $CONDITIONS == *weak* ]]; then
    [[ -f experiments/seed_app/weak/build.json ]] || "$python" -m agentevolver.recipes.offline.seed.app --base weak --out experiments/seed_app/weak
fi
seeds=${SEEDS:-} conditions=${CONDITIONS:-} jobs=${JOBS:-} known=${KNOWN:-}
"$python" -m agentevolver table examples/tables/paper.yaml "$@" ${seeds:+--seeds "${seeds// /,}"} ${conditions:+--conditions "${conditions// /,}"} \
    ${jobs:+--jobs "$jobs"} ${known:+--known "$known"}
"$python" -m agentevolver table examples/tables/paper.yaml "$@" --only-table --baseline q --out experiments/paper/from_q ${known:+--known "$known"}
