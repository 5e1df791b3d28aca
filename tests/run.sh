#!/usr/bin/env bash
# Checks and tests: bash tests/run.sh [all | checks | unit | thorough | service | environments | recipes | e2e | examples | chaos] [pytest arguments...]
#   checks   ruff, the rules of imports (pyproject.toml), mypy, sizes (budgets.toml), and the documentation built with every warning an error
#   unit     pure functions, no servers, no test that takes as long as half a second, all its cases together
#   thorough what takes longer: properties over many cases, hostile input by the ten thousand, a plan of every example
#   service  real servers, processes and Ray on loopback, faults on purpose
#   environments, recipes   the tests in the folders of these, where the folder, one that it imports or what all of them stand on changed
#            (tests/changed.py; TESTS_SINCE=REVISION says since when, WHOLE=1 runs every one, as chaos does)
#   e2e      the whole training stack
#   examples every file of examples/ started for real, two steps each with its sizes made small, two
#            environments in one run (not in all; -k NAME for one of them)
#   chaos    whole runs: every part killed in turn, the launcher too, a full disk, a language model that is away, a second node without
#            power, rollouts that go on over updates, the verbs of the command line on a run (about 30 minutes; not in all; says
#            how long each took)
# Installs what is missing first (install.sh --dev). Runs every part asked for, then says which failed; exit code 0 means none.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1

tier=all
if (($#)) && [[ $1 != -* ]]; then
    tier=$1
    shift
fi
case $tier in
    all) parts=(ruff format imports mypy budgets docs unit thorough service environments recipes e2e) ;;
    checks) parts=(ruff format imports mypy budgets docs) ;;
    unit | thorough | service | environments | recipes | e2e | examples) parts=("$tier") ;;
    chaos)
        export WHOLE=1
        parts=(environments recipes chaos)
        ;;
    *)
        echo "unknown part '$tier': all, checks, unit, thorough, service, environments, recipes, e2e, examples or chaos" >&2
        exit 2
        ;;
esac

bash install.sh --dev || exit 1
export OMP_NUM_THREADS=1
bin=.venv/bin

# The agents that are run through the gateway live in an environment of their own; a test of theirs that cannot run has failed.
agents() {
    export AGENTS_REQUIRED=1
    PYTHON=$PWD/$bin/python bash tests/agents/setup.sh || echo "the agents of tests/agents could not be installed; their tests fail" >&2
}

# So do environments of other makers, whose tests are skipped without it; the page's tests look through a browser. In CI, as root, what belongs to the system is installed, too.
worlds() {
    local world
    if [[ -n ${CI:-} && $EUID == 0 ]] && command -v apt-get >/dev/null; then
        local wanted=()
        command -v java >/dev/null || wanted+=(default-jre-headless)
        command -v chromium-headless-shell >/dev/null || wanted+=(chromium-headless-shell)
        command -v podman >/dev/null || wanted+=(podman runc busybox-static)
        if ((${#wanted[@]})); then
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${wanted[@]}" >/dev/null ||
                echo "apt-get could not install ${wanted[*]}; the tests that need it are skipped" >&2
        fi
    fi
    for world in $(grep -l '^setup_for_tests = true' env_service/environments/*/environment.toml); do
        world=$(dirname "$world")
        PYTHON=$PWD/$bin/python bash "$world/setup.sh" >/dev/null || echo "$world could not be set up; its tests are skipped" >&2
    done
}

# of_core OPTIONS... -- ARGUMENTS...: pytest on the core's tests, unless the arguments name others: `--ignore` leaves
# nothing out of pyproject's testpaths.
of_core() {
    local options=() where=(tests) argument
    while [[ $1 != -- ]]; do options+=("$1") && shift; done
    shift
    for argument in "$@"; do [[ -e ${argument%%::*} ]] && where=(); done
    "$bin/python" -m pytest -q "${options[@]}" "${where[@]}" "$@"
}

# in_process -n WORKERS "EXPRESSION and" ARGUMENTS...: tests that start nothing. What holds none of them need not be read.
in_process() {
    of_core -p no:schemathesis "$1" "$2" -m "$3 not service and not chaos and not e2e" --ignore=tests/e2e --ignore=tests/chaos -- "${@:4}"
}

# The unit tests as two processes of half the files each: what two workers of xdist spend on reading all files twice, and on
# telling a third process of each test, is a fifth of the time. The first half holds most of what imports torch and verl.
halves() {
    local first=(tests/agentevolver --ignore=tests/agentevolver/config) second=(tests/agentevolver/config) folder said
    for folder in tests/*/; do
        case $folder in
            tests/agentevolver/ | tests/e2e/ | tests/chaos/ | tests/__pycache__/) ;;
            tests/advantage_processor/) first+=("$folder") ;;
            *) second+=("$folder") ;;
        esac
    done
    said=$(mktemp)
    in_process -n 0 "not thorough and" -p no:cacheprovider "${second[@]}" >"$said" 2>&1 &
    local other=$! verdict=0
    in_process -n 0 "not thorough and" "${first[@]}" || verdict=1
    wait "$other" || verdict=1
    cat "$said"
    rm -f "$said"
    return "$verdict"
}

run() {
    case $1 in
        ruff) "$bin/ruff" check . ;;
        format) "$bin/ruff" format --check . ;;
        imports) "$bin/lint-imports" --no-cache ;;
        mypy) "$bin/mypy" ;;
        budgets) "$bin/python" tests/budgets.py ;;
        docs)
            # It writes the site and its cache beside its configuration. Two pages are made of the sources, and the pages of
            # recipes, which lie beside their code, come in under recipes/.
            local place verdict page
            place=$(mktemp -d)
            cp -r mkdocs.yml docs "$place"
            mkdir "$place/docs/recipes"
            for page in agentevolver/recipes/*/README.md; do
                sed -E 's#\]\(\.\./\.\./\.\./docs/#](../#g; s#\]\(\.\./([a-z0-9_]+)/README\.md#](\1.md#g' "$page" \
                    > "$place/docs/recipes/$(basename "$(dirname "$page")").md"
            done
            sed -Ei 's#\]\(\.\./agentevolver/recipes/([a-z0-9_]+)/README\.md#](recipes/\1.md#g' "$place"/docs/*.md
            "$bin/python" -m agentevolver.config.reference > "$place/docs/configuration.md" &&
                "$bin/python" docs/api_page.py > "$place/docs/python_api.md" && rm "$place/docs/api_page.py" &&
                "$bin/zensical" build --strict --config-file "$place/mkdocs.yml" > "$place/log" 2>&1
            verdict=$?
            ((verdict == 0)) || cat "$place/log"
            rm -rf "$place"
            return "$verdict"
            ;;
        # Arguments may be files, which no half may widen.
        environments | recipes)
            local folders
            mapfile -t folders < <("$bin/python" -m tests.changed "$1" ${WHOLE:+--all})
            ((${#folders[@]})) || return 0
            "$bin/python" -m pytest -q -n 2 --dist loadfile -m "not e2e" --durations=20 "${folders[@]}" "${@:2}"
            ;;
        unit) if (($# > 1)); then in_process -n 2 "not thorough and" "${@:2}"; else halves; fi ;;
        thorough)
            local files=()
            if (($# == 1)); then mapfile -t files < <(grep -rl --include='test_*.py' '@pytest.mark.thorough' tests); fi
            in_process -n 2 "thorough and" "${files[@]}" "${@:2}"
            ;;
        service)
            agents
            of_core -n 2 --dist loadfile -m "(service or chaos) and not e2e" --durations=40 -- "${@:2}"
            ;;
        e2e) "$bin/python" -m pytest -q -m "e2e and not chaos and not examples" "${@:2}" ;;
        examples)
            agents
            "$bin/python" -m pytest -q -m examples --durations=0 "${@:2}"
            ;;
        chaos) "$bin/python" -m pytest -q -m "e2e and chaos" --durations=0 "${@:2}" ;;
    esac
}

# Before the unit tests: some of theirs read these packages.
if [[ " ${parts[*]} " =~ " "(service|environments|recipes|examples)" " ]]; then worlds; fi
summary=()
failed=0
for part in "${parts[@]}"; do
    echo "== $part"
    began=$SECONDS
    if run "$part" "$@"; then verdict=passed; else verdict=FAILED && failed=1; fi
    summary+=("$part: $verdict ($((SECONDS - began)) s)")
done
printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
