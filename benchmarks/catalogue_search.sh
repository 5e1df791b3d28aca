#!/usr/bin/env bash
# A policy that searches a catalogue of tools against one that is given the 20 nearest to the request: three seeds each, on a CPU.
#
#   bash env_service/environments/catalogue/setup.sh
#   bash benchmarks/catalogue_search.sh [FOLDER]      demonstrations, two tiny policies, six runs of STEPS (40) training steps
#
# Both policies have imitated as many demonstrations of the same kind of task, and are trained with the same settings. Prints for each run the success on dev
# before and after, the means of the three seeds and their 95% intervals (t with 2 degrees of freedom). Stopped, it goes on with the same command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder="${1:-/tmp/catalogue}"
steps="${STEPS:-40}"
python="${PYTHON:-.venv/bin/python}"
world=env_service.environments.catalogue.env:CatalogueEnv
declare -A params=(
    [search]='{"syntax": "compact", "slack": 6}'
    [given]='{"syntax": "compact", "search": false, "preload": 20, "slack": 6}'
)
declare -A overrides=(
    [search]='env_service.env_params={syntax: compact, slack: 6}'
    [given]='env_service.env_params={syntax: compact, search: false, preload: 20, slack: 6}'
)
# What a prompt may hold: twenty tools need more room.
declare -A prompt=([search]=640 [given]=704)

[[ -f "$folder/given.jsonl" ]] || "$python" benchmarks/catalogue_demos.py --out "$folder"
for arm in search given; do
    if [[ ! -f "$folder/$arm/build.json" ]]; then
        # BFCL's tasks cannot be written in the compact syntax, so that the builder's own measurement of dev ends with an error behind the build.
        "$python" -m agentevolver.recipes.offline.seed --env "$world" --demos "$folder/$arm.jsonl" --out "$folder/$arm" --env-params "${params[$arm]}" ||
            [[ -f "$folder/$arm/build.json" ]]
    fi
    for seed in 1 2 3; do
        name="$arm-$seed"
        [[ -d "experiments/catalogue/$name/checkpoints/global_step_$steps" ]] || "$python" launcher.py --conf examples/catalogue.yaml device=cpu \
            "trainer.experiment_name=$name" "data.seed=$seed" "trainer.total_training_steps=$steps" trainer.save_freq=10 \
            "actor_rollout_ref.model.path=$folder/$arm" "${overrides[$arm]}" "data.max_prompt_length=${prompt[$arm]}" \
            "actor_rollout_ref.rollout.max_model_len=$((prompt[$arm] + 640))"
    done
done
"$python" - << 'PYTHON'
from pathlib import Path
from statistics import mean, stdev

from agentevolver.utils.files import read_jsonl

T = 4.303  # of 2 degrees of freedom, 95%
for arm in ("search", "given"):
    last = []
    for seed in (1, 2, 3):
        records = read_jsonl(Path(f"experiments/catalogue/{arm}-{seed}/metrics.jsonl"))
        found = [(r["step"], v) for r in records for k, v in sorted(r.items()) if k.startswith("val-core/") and "/mean@" in k]
        print(f"{arm}, seed {seed}: dev {found[0][1]:.3f} at step {found[0][0]}, {found[-1][1]:.3f} at step {found[-1][0]}")
        last.append(found[-1][1])
    print(f"{arm}: {mean(last):.3f} +- {T * stdev(last) / 3**0.5:.3f}")
PYTHON
