"""Where the secrets of a run that trains are to be seen: nowhere but in its own files of secrets."""

import pytest

from tests.e2e.conftest import SECRETS
from tests.strangers import readable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_no_worker_and_no_service_carries_a_secret_in_its_environment(basic_run):
    assert {
        command: names for command, names in basic_run.carried.items() if "agentevolver.trainer.job.main" not in command
    } == {}


def test_no_log_of_ray_and_no_file_of_the_run_holds_a_secret(basic_run):
    assert basic_run.exposed == set(), "while it trained, with Ray's own logs"
    assert readable([basic_run.directory], SECRETS.values()) == set(), "after it"


def test_what_a_run_wrote_is_its_owners_alone(basic_run):
    assert basic_run.directory.stat().st_mode & 0o777 == 0o700
    assert [
        path for path in basic_run.directory.rglob("*") if path.stat().st_mode & 0o077 and not path.is_symlink()
    ] == []
