#!/usr/bin/env bash
# Removes environments or recipes from a copy of the repository and checks what is left: bash tests/remove_one.sh [NAME...] [--recipes]
#   NAME       a folder of env_service/environments; those that import it (environment.toml) go with it
#   --recipes  agentevolver/recipes, too
# Runs the contracts, mypy and the unit tests of the core. The copy holds what git knows of, as it is in the working tree.
set -euo pipefail
repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
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

for argument in "$@"; do
    if [[ $argument == --recipes ]]; then
        rm -r agentevolver/recipes
        echo "== removed agentevolver/recipes"
    else
        [[ -d env_service/environments/$argument ]] || { echo "there is no env_service/environments/$argument" >&2; exit 2; }
        remove "$argument"
    fi
done

failed=0
check() {
    echo "== $1"
    "${@:2}" || { failed=1 && echo "== $1 FAILED"; }
}
check imports "$bin/lint-imports" --no-cache
check mypy "$bin/mypy" --cache-dir "$copy/.mypy_cache"
check unit "$bin/python" -m pytest -q -p no:schemathesis -p no:cacheprovider -n 0 -m "not service and not thorough and not chaos and not e2e" \
    --ignore=tests/e2e --ignore=tests/chaos tests
exit "$failed"
