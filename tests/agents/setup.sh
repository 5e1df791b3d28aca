#!/usr/bin/env bash
# Makes the venv of the agents that tests/agents runs through the gateway: the packages of requirements/agents.lock, and codex from npm.
# Safe to run again: it does what is missing, and nothing else.
#
#   bash tests/agents/setup.sh           venv, packages and codex (a minute and a half, 720 MB)
#   bash tests/agents/setup.sh --force   throw the venv away first
#
# AGENTS_VENV     where the venv goes          (default: .venvs/agents in the repository)
# PYTHON          interpreter of the venv      (default: that of the repository's .venv, else python3.11 or python3.12; one of these two)
#
# Why a venv of its own: an agent is somebody else's program, with pins of its own. It is only ever started as a process.
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
repository="$(cd "$folder/../.." && pwd)"
venv="${AGENTS_VENV:-$repository/.venvs/agents}"
lock="$repository/requirements/agents.lock"
force=false
for argument in "$@"; do
    case "$argument" in
        --force) force=true ;;
        *) echo "setup.sh: unknown argument '$argument'; known is --force" >&2; exit 2 ;;
    esac
done

suits() { [[ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" =~ ^3\.1[12]$ ]]; }
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
    for python in "$repository/.venv/bin/python" python3.11 python3.12 python3; do
        if suits "$python"; then break; fi
    done
fi
if ! suits "$python"; then
    echo "setup.sh: $python is $("$python" --version 2>&1); requirements/agents.lock is for Python 3.11 and 3.12 alone. Set PYTHON." >&2
    exit 1
fi
if $force; then rm -rf "$venv"; fi
if ! cmp -s "$lock" "$venv/.agentevolver-lock"; then
    echo "Making $venv"
    [[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement "$lock"
    "$venv/bin/python" -I -c 'import agents, anthropic, langchain_openai, openai, pydantic_ai, smolagents' >/dev/null
    cp "$lock" "$venv/.agentevolver-lock"
fi
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null || ! { apt-get update -qq && apt-get install -y -qq nodejs npm >/dev/null; }; then
        echo "setup.sh: codex, the command-line agent, comes from npm, and node or npm is not on PATH: install Node.js 16 or newer" >&2
        exit 1
    fi
fi
if ! cmp -s "$folder/codex/package-lock.json" "$venv/.agentevolver-codex"; then
    mkdir -p "$venv/codex"
    cp "$folder"/codex/package.json "$folder"/codex/package-lock.json "$venv/codex"
    (cd "$venv/codex" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error)
    cp "$folder/codex/package-lock.json" "$venv/.agentevolver-codex"
fi
echo "The agents are ready: $("$venv/codex/node_modules/.bin/codex" --version), and the packages of requirements/agents.lock"
