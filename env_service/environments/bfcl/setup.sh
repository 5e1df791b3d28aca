#!/usr/bin/env bash
# Adds the BFCL package to the Python that runs the environment service. No venv of its own is needed:
# without its dependencies (torch, faiss, vendor SDKs, none used here) the package is 2 MB of data and pure Python.
set -euo pipefail
PYTHON="${PYTHON:-python}"
"$PYTHON" -m pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0 filelock
"$PYTHON" -c 'from env_service.environments.bfcl import BfclEnv; print(len(BfclEnv.get_query_list("full")), "BFCL tasks are ready")'
