"""Upload of an exported folder to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentevolver.utils.errors import LaunchError, UsageError, last_line
from agentevolver.utils.secrets import secret

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def check_push(repo: str) -> str:
    """Return the token for an upload. The hub is not contacted.

    Raises:
        UsageError: the name is invalid, or no token is set.
    """
    if not _REPO.fullmatch(repo) or "--" in repo or ".." in repo:
        raise UsageError(f"--push {repo} must be OWNER/NAME of a model on the hub")
    token = next(filter(None, map(secret, TOKENS)), "")
    if not token:
        raise UsageError("--push needs a token with write access: set HF_TOKEN, in the shell or in .env")
    return token


def push(folder: Path, repo: str, token: str, *, public: bool, api: Any = None) -> str:
    """Upload a folder as a model and return its URL. A missing repository is created.

    Args:
        repo: OWNER/NAME.
        public: visibility of a repository that is created now.
        api: `huggingface_hub.HfApi`; None: one with the token.

    Raises:
        LaunchError: the hub refused or does not answer. The folder is kept.
    """
    import httpx
    from huggingface_hub import HfApi

    hub = HfApi(token=token) if api is None else api
    try:
        hub.create_repo(repo, private=not public, exist_ok=True, repo_type="model")
        hub.upload_folder(
            repo_id=repo, folder_path=str(folder), repo_type="model", commit_message="Exported by AgentEvolver"
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise LaunchError(f"{folder} is complete but could not be pushed to {repo}: {last_line(error)}") from error
    return f"https://huggingface.co/{repo}"
