#!/usr/bin/env bash
# The tables of docs/protocol.md, from nothing: the weaker base (the stronger one is shipped), then every condition with every seed. What is finished is not
# done again, and what was ended goes on where it was.
#   bash examples/paper_tables.sh                                   # hours on two cores: docs/protocol.md says how many
#   SEEDS=1 CONDITIONS="grpo overall" bash examples/paper_tables.sh
#   JOBS=2 KNOWN=docs/tables/paper.csv bash examples/paper_tables.sh  # two runs side by side; what stands in the csv is not run again
# What is run stands in tables/paper.yaml. Arguments go to every launch. Differences are written from grpo, and from q (self-questioning alone).
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
bash install.sh
python=$root/.venv/bin/python
if [[ -z ${CONDITIONS:-} || $CONDITIONS == *weak* ]]; then
    [[ -f experiments/seed_app/weak/build.json ]] || "$python" -m agentevolver.builtin.seed.app --base weak --out experiments/seed_app/weak
fi
seeds=${SEEDS:-} conditions=${CONDITIONS:-} jobs=${JOBS:-} known=${KNOWN:-}
"$python" -m agentevolver table examples/tables/paper.yaml "$@" ${seeds:+--seeds "${seeds// /,}"} ${conditions:+--conditions "${conditions// /,}"} \
    ${jobs:+--jobs "$jobs"} ${known:+--known "$known"}
"$python" -m agentevolver table examples/tables/paper.yaml "$@" --only-table --baseline q --out experiments/paper/from_q ${known:+--known "$known"}
