#!/usr/bin/env bash
# Makes the venv that the scienceworld environment imports scienceworld from. Safe to run again: it does what is missing, and nothing else.
#
#   bash env_service/environments/scienceworld/setup.sh           seconds, 10 MB
#   bash env_service/environments/scienceworld/setup.sh --force   throw the venv away first
#
# SCIENCEWORLD_VENV   where the venv goes       (default: .venvs/scienceworld in the repository; elsewhere, set SCIENCEWORLD_SITE for the service)
# PYTHON              interpreter of the venv   (default: that of the repository's .venv; the version has to be that of the service)
#
# The simulator is a Java program: a runtime, 8 or later, has to be there (Debian, Ubuntu: apt install default-jre-headless).
set -euo pipefail

command -v java > /dev/null || {
    echo "setup.sh: ScienceWorld needs a Java runtime, and there is no java: apt install default-jre-headless" >&2
    exit 1
}
java -version > /dev/null 2>&1 || { echo "setup.sh: java does not run: $(java -version 2>&1 | head -n 1)" >&2; exit 1; }

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="${SCIENCEWORLD_VENV:-$(cd "$folder/../../.." && pwd)/.venvs/scienceworld}"
source "$folder/../../own_venv.sh"
(cd "$repository" && SCIENCEWORLD_SITE="$site" "$python" -c \
    'from env_service.environments.scienceworld.simulator import VERSION, Simulator; Simulator.shared().stop(); print("ScienceWorld", VERSION, "is ready in its venv")')
