#!/usr/bin/env bash
# The runs of docs/results.md#two-agents-calc and their tables. 5 to 14 minutes a run on two cores; resumes.
#   bash agentevolver/recipes/agent0/examples/agent0_tables.sh
#   bash agentevolver/recipes/agent0/examples/agent0_tables.sh --narrow       # three seeds of narrow and narrow_frozen
#   SEEDS=1 ROUNDS=2 CONDITIONS="executed vote" bash agentevolver/recipes/agent0/examples/agent0_tables.sh
#   SEEDS=1 CONDITIONS="narrow_malformed narrow_steps" bash agentevolver/recipes/agent0/examples/agent0_tables.sh
# executed: gate executed, trained proposer. frozen: untrained proposer at equal rollouts. equal_updates: frozen at equal draws. vote: labels by vote.
# no_tool: no bonus for tool calls. no_adpo. narrow, narrow_frozen: the proposer begins with short problems. narrow_malformed: too long a problem
# costs nothing. narrow_steps: more proposer steps, fewer draws. The pool is as large as the most draws. Other arguments go to every launch.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.." && pwd -P)
cd "$root"
if [[ ${1:-} == --narrow ]]; then
    shift
    SEEDS=${SEEDS:-1 2 3} CONDITIONS=${CONDITIONS:-narrow narrow_frozen}
fi
rounds=${ROUNDS:-4} conditions=${CONDITIONS:-executed frozen vote equal_updates no_tool no_adpo narrow narrow_frozen}
bash install.sh
python=.venv/bin/python project=agent0
wide=experiments/seed_calc narrow=experiments/seed_calc_narrow
[[ -f $wide/build.json ]] || $python -m agentevolver.recipes.offline.seed.calc --out "$wide"
[[ -f $narrow/build.json || $conditions != *narrow* ]] || $python -m agentevolver.recipes.offline.seed.calc --narrow --out "$narrow"

launch() { # NAME SEED [key=value...]
    local name=$1 seed=$2
    shift 2
    [[ -e experiments/$project/$name/finished ]] && return
    $python launcher.py --conf agentevolver/recipes/agent0/examples/agent0.yaml trainer.project_name=$project "trainer.experiment_name=$name" \
        "data.seed=$seed" "actor_rollout_ref.rollout.seed=$seed" "recipes.agent0.rounds=$rounds" recipes.agent0.pool=480 "$@"
    mkdir -p "experiments/$project/$name"
    touch "experiments/$project/$name/finished"
}

for condition in $conditions; do
    own=() seeds=${SEEDS:-1}
    case $condition in
        executed) seeds=${SEEDS:-1 2 3} ;;
        # 15 steps x 8 seeds x 6 proposals x 6 episodes are 432 labels of 10 episodes.
        frozen) seeds=${SEEDS:-1 2 3} own=(recipes.agent0.proposer.trained=false recipes.agent0.draws=912 recipes.agent0.pool=912) ;;
        vote) seeds=${SEEDS:-1 2 3} own=(recipes.agent0.gate=vote) ;;
        equal_updates) own=(recipes.agent0.proposer.trained=false) ;;
        no_tool) own=(recipes.agent0.reward.tool=0) ;;
        no_adpo) own=(recipes.agent0.adpo.enable=false) ;;
        narrow) own=("recipes.agent0.proposer.path=$narrow") ;;
        narrow_malformed) own=("recipes.agent0.proposer.path=$narrow" recipes.agent0.reward.malformed=0) ;;
        # 22 x 8 x 6 x 6 episodes and 278 labels of 10 are as many as 15 x 8 x 6 x 6 and 480 of 10, but for 4.
        narrow_steps) own=("recipes.agent0.proposer.path=$narrow" recipes.agent0.proposer.steps=22 recipes.agent0.draws=278 recipes.agent0.pool=278) ;;
        narrow_frozen) own=("recipes.agent0.proposer.path=$narrow" recipes.agent0.proposer.trained=false recipes.agent0.draws=912 recipes.agent0.pool=912) ;;
        *) echo "there is no condition $condition" >&2 && exit 2 ;;
    esac
    for seed in $seeds; do
        launch "$condition-$seed" "$seed" "${own[@]}" "$@"
    done
done
$python -m benchmarks.agent0_tables --experiments "experiments/$project"
