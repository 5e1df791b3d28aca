#!/usr/bin/env bash
# Builds the catalogue of tools from what is installed here. Safe to run again: it is built anew.
#
#   bash env_service/environments/catalogue/setup.sh                 every source that is there
#   bash env_service/environments/catalogue/setup.sh --encoder hashing   without a language model (tests, tiny policies)
#
# BFCL's functions need its package (env_service/environments/bfcl/setup.sh), AppWorld's APIs its venv (env_service/environments/appworld/setup.sh),
# MCP servers' tools Node.js: four servers are installed from npm into .venvs/catalogue, at the versions of package.json here.
# What is missing is named and left out. CATALOGUE_FOLDER names where the catalogue goes; PYTHON the interpreter.
set -euo pipefail
folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
repository="$(cd "$folder/../../.." && pwd)"
python="${PYTHON:-$repository/.venv/bin/python}"
[[ -x "$(command -v "$python")" ]] || { echo "setup.sh: there is no $python; run install.sh, or set PYTHON" >&2; exit 1; }
if command -v npm > /dev/null; then
    mkdir -p "$repository/.venvs/catalogue"
    cp "$folder/package.json" "$folder/servers.json" "$repository/.venvs/catalogue/"
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$repository/.venvs/catalogue" ||
        echo "setup.sh: npm could not install the MCP servers; their tools will be missing" >&2
else
    echo "setup.sh: there is no npm; the tools of MCP servers will be missing (apt install npm)" >&2
fi
cd "$repository"
exec "$python" -m env_service.environments.catalogue.build "$@"
