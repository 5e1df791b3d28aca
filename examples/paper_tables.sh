#!/usr/bin/env bash
# The tables of docs/protocol.md, from nothing: the policy to begin with, then every condition with every seed. What is finished is not done again, and what
# was ended goes on where it was.
#   bash examples/paper_tables.sh                                   # hours on two cores: docs/protocol.md says how many
#   SEEDS=1 CONDITIONS="grpo overall" bash examples/paper_tables.sh
#   TABLES=paper_three bash examples/paper_tables.sh
# What is run stands in tables/paper.yaml (five seeds), tables/paper_three.yaml (three) and tables/paper_one.yaml (one). Arguments go to every launch.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
bash install.sh
python=$root/.venv/bin/python
[[ -f experiments/seed_app/strong/build.json ]] || "$python" -m agentevolver.builtin.seed.app --base strong --out experiments/seed_app/strong
seeds=${SEEDS:-} conditions=${CONDITIONS:-}
for table in ${TABLES:-paper paper_three paper_one}; do
    "$python" -m agentevolver table "examples/tables/$table.yaml" "$@" --out "experiments/paper/$table" \
        ${seeds:+--seeds "${seeds// /,}"} ${conditions:+--conditions "${conditions// /,}"}
done
