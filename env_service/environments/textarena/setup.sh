#!/usr/bin/env bash
# Makes the venv that the textarena environment imports textarena from. Safe to run again: it does what is missing, and nothing else.
#
#   bash env_service/environments/textarena/setup.sh           seconds, 34 MB
#   bash env_service/environments/textarena/setup.sh --force   throw the venv away first
#
# TEXTARENA_VENV   where the venv goes       (default: .venvs/textarena in the repository; elsewhere, set TEXTARENA_SITE for the service)
# PYTHON           interpreter of the venv   (default: that of the repository's .venv; the version has to be that of the service)
#
# Why a venv of its own: textarena asks for nltk, openai, chess and others, which would change the training stack. Here it stands alone; of
# these the games need none, and requests, websockets and rich, which it imports, are those of the service.
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="${TEXTARENA_VENV:-$(cd "$folder/../../.." && pwd)/.venvs/textarena}"
source "$folder/../../own_venv.sh"
(cd "$repository" && TEXTARENA_SITE="$site" "$python" -c \
    'from env_service.environments.textarena.package import VERSION, package; package(); print("TextArena", VERSION, "is ready in its venv")')
