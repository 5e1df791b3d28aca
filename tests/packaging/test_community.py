"""What a repository shows beside its code: workflows, containers, hooks and the citation name what is here."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RUN = (ROOT / "tests" / "run.sh").read_text(encoding="utf-8")


def read(path: str):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_jobs_of_the_workflow_are_the_tiers():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    (all_of,) = re.findall(r"^    all\) parts=\((.*)\) ;;", RUN, re.MULTILINE)
    (checks,) = re.findall(r"^    checks\) parts=\((.*)\) ;;", RUN, re.MULTILINE)
    every = jobs["tests"]["strategy"]["matrix"]["tier"]
    assert set(all_of.split()) == set(checks.split()) | set(every) - {"checks"} and "checks" in every
    assert set(jobs["nightly"]["strategy"]["matrix"]["tier"]) == {"examples", "chaos"}
    assert all(jobs[name]["steps"][-1]["run"] == "bash .ci/run ${{ matrix.tier }}" for name in ("tests", "nightly"))
    assert jobs.keys() == {"tests", "nightly", "links"} and jobs["links"]["continue-on-error"] is True


def test_an_image_holds_no_secrets_and_no_environment_of_the_host():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".env", ".venv", ".git", "experiments"} <= set(ignored)
