"""What a process with foreign code may see."""

from __future__ import annotations

from env_service.processes import without_secrets


def test_secrets_and_rays_variables_do_not_reach_isolated_environments() -> None:
    environ = {
        "PATH": "/bin",
        "OPENAI_API_KEY": "k",
        "ENV_SERVICE_TOKEN": "t",
        "HF_TOKEN": "h",
        "DB_PASSWORD": "p",
        "AWS_SECRET_ACCESS": "s",
        "RAY_ADDRESS": "a",
        "JUDGE_API_KEY": "j",
    }
    assert without_secrets(environ, keep=["JUDGE_API_KEY"]) == {"PATH": "/bin", "JUDGE_API_KEY": "j"}
