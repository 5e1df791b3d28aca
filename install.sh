#!/usr/bin/env bash
# Installs AgentEvolver into .venv beside this file, from the pins in requirements/. No conda, no root, nothing outside the checkout.
# Safe to run again: does nothing when everything is in place, continues where an interrupted run stopped.
set -euo pipefail

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
VENV=$ROOT/.venv
STATE=$ROOT/.agentevolver
LOG=$STATE/install.log
MARK=$VENV/.agentevolver-installing
STAMP=$VENV/.agentevolver-stamp
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

usage() {
    cat <<'TEXT'
usage: bash install.sh [--cpu | --cuda] [--dev] [--python PATH]

  --cpu, --cuda   the device; without it: cuda if an NVIDIA GPU is found, else cpu
  --dev           also tests, checks and documentation tools (requirements/dev.lock)
  --python PATH   the Python to build .venv with (3.11 or 3.12); without it the first suitable one on PATH
TEXT
}

say() { printf '[install] %s\n' "$*"; }
warn() { printf '[install] %s\n' "$*" >&2; }
die() {
    warn "error: $1"
    shift
    local line
    for line in "$@"; do warn "  $line"; done
    exit 1
}

# --- what is asked for ---------------------------------------------------------------------------------------------------------

MODE='' DEV=0 ASKED_PYTHON=''
while (($#)); do
    case $1 in
        --cpu | --cuda)
            [[ -z $MODE || $MODE == "${1#--}" ]] || die "--cpu and --cuda exclude each other"
            MODE=${1#--}
            ;;
        --dev) DEV=1 ;;
        --python)
            (($# > 1)) || die "--python needs a path"
            ASKED_PYTHON=$2
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            usage >&2
            die "unknown option $1"
            ;;
    esac
    shift
done

has_gpu() {
    [[ -e /dev/nvidia0 ]] || { command -v nvidia-smi >/dev/null && timeout 10 nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }
}

if [[ -z $MODE ]]; then
    if has_gpu; then MODE=cuda; else MODE=cpu; fi
fi
LOCK=$ROOT/requirements/$MODE.lock
DEV_LOCK=$ROOT/requirements/dev.lock

# --- one run at a time ---------------------------------------------------------------------------------------------------------

mkdir -p "$STATE"
exec 9>"$STATE/install.lock"
if command -v flock >/dev/null; then
    if ! flock -n 9; then
        say "another install.sh works on this checkout; waiting for it"
        flock -w 3600 9 || die "the other install.sh still runs after an hour" "see $LOG"
    fi
else
    warn "flock is not on PATH (package util-linux): do not run install.sh twice at once"
fi

# --- nothing to do? ------------------------------------------------------------------------------------------------------------

# The root is part of the key: the scripts in a virtual environment hold its absolute path, so a moved checkout needs a new one.
stamp_key() { # dev(0|1)
    {
        printf '%s\n' "$ROOT" "$MODE" "$1"
        cat "$LOCK" "$ROOT/pyproject.toml" "$ROOT/requirements/shim_vllm/pyproject.toml" "$ROOT/install.sh"
        if (($1)); then cat "$DEV_LOCK"; fi
    } | sha256sum | cut -d' ' -f1
}

installed() {
    [[ -f $STAMP && ! -e $MARK ]] && "$VENV/bin/python" -c 'import agentevolver' 2>/dev/null || return 1
    local found
    found=$(<"$STAMP")
    [[ $found == "$(stamp_key 1)" ]] || { ((!DEV)) && [[ $found == "$(stamp_key 0)" ]]; }
}

# shellcheck disable=SC2310  # `installed` is a question: its failures are its answer
if [[ -z $ASKED_PYTHON ]] && installed; then
    say "already installed in $VENV ($MODE); nothing to do"
    exit 0
fi

# --- the machine ---------------------------------------------------------------------------------------------------------------

[[ $(uname -s) == Linux && $(uname -m) == x86_64 ]] ||
    die "the pins are for Linux on x86-64, this is $(uname -s) on $(uname -m)" "On Windows use WSL 2; on other processors use a container or a remote machine."

SUITABLE='import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 12) and sys.maxsize > 2**32 else 1)'
suitable() { "$1" -c "$SUITABLE" >/dev/null 2>&1; }

find_python() {
    local name seen=''
    if [[ -n $ASKED_PYTHON ]]; then
        suitable "$ASKED_PYTHON" || die "--python $ASKED_PYTHON is not a 64-bit Python 3.11 or 3.12"
        PYTHON=$ASKED_PYTHON
        return
    fi
    for name in python3.11 python3.12 python3 python; do
        [[ $(command -v "$name") != "$VENV"/* ]] || continue # an activated .venv is no base to build it from
        command -v "$name" >/dev/null || continue
        if suitable "$name"; then
            PYTHON=$(command -v "$name")
            return
        fi
        seen+=" $name ($("$name" --version 2>&1 | head -n 1 || true))"
    done
    die "no Python 3.11 or 3.12 found; on PATH:${seen:- none}" \
        "Debian 12, Ubuntu 22.04 or later: sudo apt install python3.11 python3.11-venv (or 3.12)" \
        "Elsewhere: install one from python.org, pyenv or uv, and name it with --python PATH"
}

free_mib() { df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024) }'; }
used_mib() { if [[ -d $1 ]]; then du -sm "$1" 2>/dev/null | cut -f1; else echo 0; fi; }

check_disk() {
    local need free
    need=6000
    if [[ $MODE == cuda ]]; then need=16000; fi
    need=$((need - $(used_mib "$VENV")))
    free=$(free_mib "$ROOT")
    ((free >= need)) || die "$free MiB free where $ROOT lies, about $need MiB are needed" "Free some space, or put the checkout on a larger disk."
    free=$(free_mib "${TMPDIR:-/tmp}")
    ((free >= 1000)) || die "$free MiB free in ${TMPDIR:-/tmp}, pip needs about 1000 there" "Free some space, or set TMPDIR to a folder with room."
}

PYTHON=''
if [[ -x $VENV/bin/python ]] && suitable "$VENV/bin/python" && [[ -z $ASKED_PYTHON ]]; then
    PYTHON=$VENV/bin/python
else
    find_python
fi
check_disk
if [[ $MODE == cuda ]] && ! command -v cc >/dev/null && ! command -v gcc >/dev/null; then
    die "no C compiler (cc or gcc): vLLM's Triton kernels are compiled when they first run" "Debian, Ubuntu: sudo apt install build-essential python3-dev"
fi

# --- the virtual environment ---------------------------------------------------------------------------------------------------

built_for() { cat "$VENV/.agentevolver-mode" 2>/dev/null || true; }

usable_venv() {
    [[ -x $VENV/bin/python && -f $VENV/pyvenv.cfg ]] || return 1
    suitable "$VENV/bin/python" || return 1
    [[ -z $ASKED_PYTHON || $("$VENV/bin/python" -c 'import sys; print(sys.version_info[:2])') == $("$ASKED_PYTHON" -c 'import sys; print(sys.version_info[:2])') ]] || return 1
    [[ -z $(built_for) || $(built_for) == "$MODE $ROOT" ]] || return 1
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1
}

: >"$LOG"
if [[ -e $VENV ]] && ! usable_venv; then
    say "replacing .venv: it was broken off, or built for another Python, device or place"
    if [[ $PYTHON == "$VENV"/* ]]; then PYTHON='' && find_python; fi
    rm -rf -- "$VENV"
fi
if [[ ! -e $VENV ]]; then
    say "creating .venv with $PYTHON ($("$PYTHON" --version 2>&1))"
    "$PYTHON" -c 'import venv, ensurepip' 2>>"$LOG" || die "$PYTHON has no module venv or ensurepip" \
        "Debian, Ubuntu: sudo apt install python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    "$PYTHON" -m venv "$VENV" >>"$LOG" 2>&1 || die "cannot create $VENV" "$(tail -n 1 "$LOG")" "full log: $LOG"
fi
PY=$VENV/bin/python
if [[ -e $MARK ]]; then
    say "an earlier run did not finish; looking for packages that it left half-installed"
    "$PY" "$ROOT/requirements/venv_check.py" mend
fi
touch "$MARK"
rm -f "$STAMP"
printf '%s %s' "$MODE" "$ROOT" >"$VENV/.agentevolver-mode"

# --- the packages --------------------------------------------------------------------------------------------------------------

# pip runs in a session of its own, so that a signal to this script stops it at once and not after the step.
PIP=''
stop_pip() {
    if [[ -n $PIP ]]; then
        kill -TERM -- "-$PIP" 2>/dev/null || true
        wait "$PIP" 2>/dev/null || true
    fi
}
trap 'stop_pip; warn "interrupted; run install.sh again, it continues from here"; exit 130' INT TERM HUP

pip_install() { # total packages, pip arguments...
    local total=$1 start found=0 shown=0 installing=0
    shift
    start=$(wc -l <"$LOG")
    printf '\n$ pip install %s\n' "$*" >>"$LOG"
    setsid "$PY" -m pip install --no-input --disable-pip-version-check --progress-bar off --retries 5 --timeout 60 "$@" >>"$LOG" 2>&1 &
    PIP=$!
    while kill -0 "$PIP" 2>/dev/null; do
        sleep 0.2 &
        wait $!
        found=$(tail -n "+$start" "$LOG" | grep -cE '^(Collecting|Requirement already satisfied)' || true)
        if ((found >= shown + 25)); then
            shown=$found
            say "  $found of $total found"
        fi
        if ((!installing)) && tail -n "+$start" "$LOG" | grep -q '^Installing collected packages'; then
            installing=1
            ((total < 25)) || say "  all found, unpacking"
        fi
    done
    local status=0
    wait "$PIP" || status=$?
    PIP=''
    return "$status"
}

explain() { # what was being installed
    local last
    last=$(tail -n 60 "$LOG")
    case $last in
        *'No space left on device'*) die "the disk filled up while installing $1" "Free some space and run install.sh again; it continues." "full log: $LOG" ;;
        *'DO NOT MATCH THE HASHES'*) die "a file is not the one that was pinned: $(grep -m 1 -oE '[A-Za-z0-9._-]+==[^ ]+' <<<"${last#*HASHES}")" \
            "Nothing of it was installed. If you trust your index or mirror, look what it serves; after changing a pin: python requirements/hashes.py" "full log: $LOG" ;;
        *'No matching distribution'*) die "the package index has no build for this Python or platform: $(grep -o 'No matching distribution found for .*' <<<"$last" | tail -n 1)" \
            "Python: $("$PY" --version 2>&1); if this is a mirror, it may lack the file." "full log: $LOG" ;;
        *'NameResolutionError'* | *'Failed to establish a new connection'* | *'Connection refused'* | *'timed out'* | *'ProxyError'* | *'SSLError'* | *'Connection broken'* | *'Network is unreachable'*)
            die "the package index cannot be reached while installing $1" "Check the network, the proxy (HTTPS_PROXY) or pip's configuration (pip config list), and run install.sh again; it continues." "full log: $LOG" ;;
        *) die "pip failed while installing $1: $(grep -i '^ *error' <<<"$last" | tail -n 1)" "full log: $LOG" ;;
    esac
}

count() { grep -cE '^[A-Za-z0-9]' "$1"; }

# A package's pin with its hashes, as a file of its own: what pip is told on the command line has no hash.
alone() { # name
    sed -n "/^$1==/,/[^\\\\]\$/p" "$LOCK" >"$STATE/$1.lock"
    [[ -s $STATE/$1.lock ]] || die "requirements/$MODE.lock has no pin of $1"
    echo "$STATE/$1.lock"
}

# pip refuses a file whose hash is not in the lock, and what is built on the way is built with what the lock holds.
install_lock() { # total packages, file, pip arguments...
    pip_install "$1" --no-deps --no-build-isolation --require-hashes "${@:3}" -r "$2"
}

# The local version +cpu in the lock is spelled out, so that no build with CUDA can match, wherever pip looks.
install_torch_cpu() {
    local pin
    pin=$(alone torch)
    install_lock 1 "$pin" && return
    if grep -q 'No matching distribution' "$LOG"; then
        say "  not in the configured index; asking PyTorch's CPU index"
        install_lock 1 "$pin" --extra-index-url "$TORCH_CPU_INDEX" && return
    fi
    grep -q 'No matching distribution' "$LOG" && die "no CPU build of torch found ($(head -c 40 "$pin" | cut -d' ' -f1 | head -n 1), $("$PY" --version 2>&1))" \
        "Neither pip's own index nor $TORCH_CPU_INDEX has it, or the latter cannot be reached." \
        "Point pip at a mirror that has it (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS). The CUDA build is not taken in its place." "full log: $LOG"
    explain torch
}

say "installing for $MODE into $VENV (log: $LOG)"
# pip reads `[extra]` and `; marker` in a path that it is given, so it is given relative ones.
cd -- "$ROOT"
install_lock 1 "$(alone setuptools)" || explain setuptools
if [[ $MODE == cpu ]]; then
    say "torch, CPU build (about 190 MB)"
    install_torch_cpu
fi
say "$(count "$LOCK") pinned packages from requirements/$MODE.lock"
install_lock "$(count "$LOCK")" "$LOCK" || explain "requirements/$MODE.lock"
if [[ $MODE == cpu ]]; then
    # Built from a copy: setuptools would leave its build folder beside the source.
    SHIM=$STATE/shim_vllm
    rm -rf -- "$SHIM"
    mkdir "$SHIM"
    cp "$ROOT/requirements/shim_vllm/pyproject.toml" "$SHIM/"
    pip_install 1 --no-deps --no-build-isolation --force-reinstall "./${SHIM#"$ROOT"/}" || explain "requirements/shim_vllm"
fi
if ((DEV)); then
    say "$(count "$DEV_LOCK") tools from requirements/dev.lock"
    install_lock "$(count "$DEV_LOCK")" "$DEV_LOCK" || explain "requirements/dev.lock"
fi
say "this checkout, editable"
pip_install 1 --no-deps --no-build-isolation -e . || explain "the checkout"

# --- what it got ---------------------------------------------------------------------------------------------------------------

if [[ $MODE == cpu ]]; then
    "$PY" "$ROOT/requirements/venv_check.py" no-cuda || die "CUDA packages in the environment of a machine without a GPU" "Remove $VENV and run install.sh again."
fi
say "checking that it imports (half a minute)"
"$PY" "$ROOT/requirements/venv_check.py" report 2>>"$LOG" || die "the installed packages do not import" "$(tail -n 1 "$LOG")" "full log: $LOG"
stamp_key "$DEV" >"$STAMP"
rm -f "$MARK"
say "done; next: bash examples/run_overall.sh"
