#!/usr/bin/env bash
# Each part alone and all together on the built-in world, from nothing to the table of docs/results.md:
#   bash examples/ablation.sh                                       # hours on two cores; what is finished is not done again
#   SEEDS=1 STEPS=20 CONDITIONS="basic overall" bash examples/ablation.sh
# Every condition is trained with every seed (validated on dev every 20 steps), then each policy is evaluated with eight rollouts a task on
# dev (sites of training), test (sites never seen) and hard (other wording too). Policies that have a pool of experience are evaluated with
# and without it, after the pool has met the sites of test. Arguments go to every launch.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
seeds=${SEEDS:-1 2 3} steps=${STEPS:-80} conditions=${CONDITIONS:-basic questioning navigating attributing overall}
bash install.sh
python=$root/.venv/bin/python
project=ablation

launch() { # NAME CONF SEED [key=value...]
    local name=$1 conf=$2 seed=$3
    shift 3
    [[ -e experiments/$project/$name/finished ]] && return
    "$python" launcher.py --conf "examples/$conf.yaml" trainer.project_name=$project "trainer.experiment_name=$name" \
        "data.seed=$seed" "actor_rollout_ref.rollout.seed=$seed" "task_manager.mixture.seed=$seed" "llm.teacher.seed=$seed" "$@"
    touch "experiments/$project/$name/finished"
}

evaluation=(trainer.val_only=true 'data.val_splits=[dev,test,hard]' actor_rollout_ref.rollout.val_kwargs.n=8)
for seed in $seeds; do
    launch "base-$seed-eval" basic "$seed" "${evaluation[@]}" "$@"
    for condition in $conditions; do
        run=$condition-$seed folder=$root/experiments/$project/$condition-$seed own=()
        launch "$run" "$condition" "$seed" "trainer.total_training_steps=$steps" trainer.test_freq=20 trainer.val_before_train=false \
            'data.val_splits=[dev]' exp_manager.scout.split=null "$@"
        conf=basic
        if [[ -e $folder/experience.sqlite ]]; then
            conf=navigating own=(exp_manager.init_exp_before_training=false)
            # A copy: what the scouts find is added to it, and the run's own stays as training left it.
            mkdir -p "$folder-eval"
            [[ -e $folder-eval/experience.sqlite ]] || cp "$folder/experience.sqlite" "$folder-eval/experience.sqlite"
        fi
        launch "$run-eval" $conf "$seed" "${evaluation[@]}" trainer.resume_mode=resume_path \
            "trainer.resume_from_path=$folder/checkpoints/global_step_$steps" "${own[@]}" "$@"
    done
done
"$python" benchmarks/ablation.py --experiments "experiments/$project" --out docs/img/ablation
