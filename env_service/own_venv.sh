# Makes the venv that an environment imports its package from. Sourced by the setup.sh of such an environment, behind `set -euo pipefail`:
#   folder   the environment's, where requirements.lock lies
#   venv     where the venv goes
#   "$@"     nothing, or --force, which throws the venv away first
# Leaves `repository`, `python` (PYTHON, or that of the repository's .venv) and `site`, the venv's site-packages. Does what is missing, and
# nothing else: pip is told of no requirement but the locked ones, each with its hash.
repository="$(cd "$folder/../../.." && pwd)"
python="${PYTHON:-$repository/.venv/bin/python}"
case "${1:-}" in
    "") ;;
    --force) rm -rf "$venv" ;;
    *) echo "setup.sh: unknown argument '$1'; known is --force" >&2; exit 2 ;;
esac
[[ -x "$(command -v "$python")" ]] || { echo "setup.sh: there is no $python; run install.sh, or set PYTHON" >&2; exit 1; }

marker="$venv/.agentevolver-lock"
if ! cmp -s "$folder/requirements.lock" "$marker"; then
    echo "Making $venv"
    [[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --requirement "$folder/requirements.lock"
    cp "$folder/requirements.lock" "$marker"
fi
site="$(echo "$venv"/lib/python3.*/site-packages)"
