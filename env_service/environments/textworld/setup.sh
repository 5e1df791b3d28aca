#!/usr/bin/env bash
# Makes the venv that the textworld environment imports textworld from. Safe to run again: it does what is missing, and nothing else.
#
#   bash env_service/environments/textworld/setup.sh           a quarter of a minute, 70 MB, Inform 7 among them
#   bash env_service/environments/textworld/setup.sh --force   throw the venv away first
#
# TEXTWORLD_VENV   where the venv goes       (default: .venvs/textworld in the repository; elsewhere, set TEXTWORLD_SITE for the service)
# PYTHON           interpreter of the venv   (default: that of the repository's .venv; the version has to be that of the service)
#
# Why a venv of its own: textworld and jericho ask for spaCy and others, which would change the training stack. Here it gets the few that
# playing and making games needs; numpy, networkx, Jinja2 and tqdm are those of the service.
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="${TEXTWORLD_VENV:-$(cd "$folder/../../.." && pwd)/.venvs/textworld}"
source "$folder/../../own_venv.sh"
(cd "$repository" && TEXTWORLD_SITE="$site" "$python" -c \
    'from env_service.environments.textworld.games import VERSION, package; package(); print("TextWorld", VERSION, "is ready in its venv")')
