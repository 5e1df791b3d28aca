"""What a repository shows beside its code: workflows, containers, hooks and the citation name what is here."""

import re
import subprocess
import tomllib
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


def test_compose_builds_the_images_of_this_checkout_and_starts_what_exists():
    compose = read("examples/docker/compose.yaml")
    dockerfile = (ROOT / "examples" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    for service in compose["services"].values():
        build = service["build"]
        assert (ROOT / "examples" / "docker" / build["context"] / build["dockerfile"]).resolve().is_file()
        assert all(f"ARG {name}" in dockerfile for name in build.get("args", {}))
        assert service["network_mode"] == "host" and service["shm_size"] == "8gb"
    (script,) = re.findall(r'^CMD \["bash", "(.*)"\]$', dockerfile, re.MULTILINE)
    assert (ROOT / script).is_file()
    device = {"cpu", compose["services"]["train-gpu"]["build"]["args"]["DEVICE"]}
    assert all(f"--{name}" in (ROOT / "install.sh").read_text(encoding="utf-8") for name in device)


def test_an_image_holds_no_secrets_and_no_environment_of_the_host():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".env", ".venv", ".git", "experiments"} <= set(ignored)


def test_the_citation_has_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = read("CITATION.cff")
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


def test_ci_runs_a_part_by_its_name():
    outcome = subprocess.run(["bash", str(ROOT / ".ci" / "run"), "nosuch"], capture_output=True, text=True, check=False)
    assert outcome.returncode == 2 and "unknown part 'nosuch'" in outcome.stderr
