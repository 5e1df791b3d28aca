#!/usr/bin/env bash
# Stands in for Python and pip in the tests of install.sh: notes each call, and fails where a test asks for it.
#   STUB_LOG       file that receives one line per call
#   STUB_UNFIT     set: not a suitable Python
#   STUB_FAIL      regular expression; a pip call that matches prints STUB_MESSAGE and fails
#   STUB_HANG      regular expression; a pip call that matches hangs
#   STUB_CUDA      set: a CUDA package is in the environment
echo "$*" | tr '\n' ' ' >>"$STUB_LOG"
echo >>"$STUB_LOG"
case "$*" in
    *'<= (3, 12)'*) [[ -z ${STUB_UNFIT:-} ]] ;;
    *'print(sys.version_info[:2])'*) echo "(3, 11)" ;;
    *'"%d.%d"'*) echo 3.11 ;;
    --version) echo "Python ${STUB_UNFIT:-3.11.9}" ;;
    '-m venv '*)
        mkdir -p "$3/bin"
        cp "${BASH_SOURCE[0]}" "$3/bin/python"
        touch "$3/pyvenv.cfg"
        ;;
    '-m pip --version') echo "pip 26" ;;
    '-m pip install '*)
        if [[ -n ${STUB_HANG:-} && $* =~ $STUB_HANG ]]; then exec sleep 300; fi
        if [[ -n ${STUB_FAIL:-} && $* =~ $STUB_FAIL ]]; then
            echo "$STUB_MESSAGE"
            exit 1
        fi
        echo "Collecting something"
        ;;
    *'venv_check.py no-cuda') [[ -z ${STUB_CUDA:-} ]] ;;
esac
