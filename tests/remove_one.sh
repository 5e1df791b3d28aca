#!/usr/bin/env bash
# Removes environments or recipes from a copy of the repository and checks what is left: bash tests/remove_one.sh [NAME...] [--recipes] [--quick]
#   NAME       a folder of env_service/environments; those that import it (environment.toml) go with it
#   --recipes  agentevolver/recipes, too; then the core also trains a random Hugging Face folder on an environment of one's own for two
#              steps on a CPU
#   --quick    without mypy
# Runs the contracts, mypy and the unit tests of the core. The copy holds what git knows of, as it is in the working tree.
set -euo pipefail
repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/repository
mkdir "$copy"
cd "$repository"
git ls-files -z --cached --others --exclude-standard --deduplicate | while IFS= read -rd '' file; do
    [[ -e $file ]] && printf '%s\0' "$file"
done | xargs -0 cp --parents --target-directory "$copy"
cd "$copy"
bin=$repository/.venv/bin
# The copy stands before the checkout that is installed.
export PYTHONPATH=$copy OMP_NUM_THREADS=1

remove() {
    [[ -d env_service/environments/$1 ]] || return 0
    rm -r "env_service/environments/${1:?}"
    echo "== removed env_service/environments/$1"
    local other
    for other in $(grep -lE "^imports = .*\"$1\"" env_service/environments/*/environment.toml); do
        remove "$(basename "$(dirname "$other")")"
    done
}

mypy=1
recipes=1
for argument in "$@"; do
    if [[ $argument == --recipes ]]; then
        rm -r agentevolver/recipes
        recipes=0
        echo "== removed agentevolver/recipes"
    elif [[ $argument == --quick ]]; then
        mypy=0
    else
        [[ -d env_service/environments/$argument ]] || { echo "there is no env_service/environments/$argument" >&2; exit 2; }
        remove "$argument"
    fi
done

# Trains on an environment beside the copy.
train() {
    local own=$work/own sizes port
    mkdir "$own"
    export PYTHONPATH=$copy:$own
    (cd "$own" && "$bin/python" -m env_service new toy) || return
    "$bin/python" -m tests.tiny_model "$own/model" || return
    port=$("$bin/python" -c 'from tests.free_ports import free_port; print(free_port())')
    sizes=(actor_rollout_ref.rollout.{n=2,val_kwargs.n=1})
    "$bin/python" launcher.py --conf "$own/toy/train.yaml" --env-module toy=toy.env:ToyEnv device=cpu "${sizes[@]}" \
        "actor_rollout_ref.model.path=$own/model" "experiment.root=$own/experiments" "env_service.env_url=http://127.0.0.1:$port" \
        trainer.total_training_steps=2 || (($? == 3)) || return  # 3: a random model's actions were all wrong
    grep -qE '"step": ?2\b' "$own/experiments/toy/first/metrics.jsonl"
}

failed=0
check() {
    echo "== $1"
    "${@:2}" || { failed=1 && echo "== $1 FAILED"; }
}
check imports "$bin/lint-imports" --no-cache
((!mypy)) || check mypy "$bin/mypy" --cache-dir "$copy/.mypy_cache"
check unit "$bin/python" -m pytest -q -p no:schemathesis -p no:cacheprovider -n 0 -m "not service and not thorough and not chaos and not e2e" \
    --ignore=tests/e2e --ignore=tests/chaos tests
((recipes)) || check train train
exit "$failed"
