"""The server-side configuration: MCP servers, task files and time limits, from the file `ENV_MCP_CONFIG` alone.

A request cannot set a command, URL or path. A wrong file raises McpConfigError. Texts of the servers may hold
`${INSTANCE_DIR}` (the episode's folder), `${CONFIG_DIR}`, `${PYTHON}` and `${env:NAME}` (a variable of the service, for
a token).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator

from agentevolver.utils.secrets import is_secret

CONFIG_VARIABLE = "ENV_MCP_CONFIG"
EXAMPLE = Path(__file__).with_name("example") / "config.json"
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


class McpConfigError(RuntimeError):
    """The operator's configuration is wrong."""


def inner_file(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("a state file must lie in the instance's folder")
    return name


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StdioServer(_Strict):
    """A server that is started as a process and uses its standard input and output."""

    type: Literal["stdio"] = "stdio"
    command: str = Field(min_length=1)
    args: list[str] = []
    env: dict[str, str] = {}
    """Added to HOME, LOGNAME, PATH, SHELL, TERM and USER; nothing else of the service's environment is passed on."""
    cwd: str = "${INSTANCE_DIR}"

    @field_validator("command", "args")
    @classmethod
    def _no_secret(cls, value: Any) -> Any:
        for name in re.findall(r"\$\{env:([^}]*)\}", str(value)):
            if is_secret(name):
                raise ValueError(f"every user of the machine can read a command line: pass ${{env:{name}}} in `env`")
        return value


class HttpServer(_Strict):
    """A running server with streamable HTTP. All instances share its state unless it separates sessions."""

    type: Literal["http", "streamable-http"] = "http"
    url: str = Field(pattern=r"^https?://")
    headers: dict[str, str] = {}


def _kind(value: Any) -> str:
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if given is not None:
        return "http" if given in ("http", "streamable-http") else str(given)
    return "http" if isinstance(value, dict) and "url" in value else "stdio"


Server = Annotated[Annotated[StdioServer, Tag("stdio")] | Annotated[HttpServer, Tag("http")], Discriminator(_kind)]


class McpConfig(_Strict):
    mcpServers: dict[str, Server] = Field(min_length=1)  # the name that MCP clients share
    tasks: list[str] = Field(min_length=1)
    """Task files (JSON lines), relative to this file."""
    state: list[Annotated[str, AfterValidator(inner_file)]] = []
    """JSON files in the instance's folder that hold all of the servers' state, so that states can be compared and tasks
    graded by them."""
    start_timeout_s: float = Field(default=30.0, gt=0, le=60)
    """For all servers to start and list their tools; they start side by side."""
    call_timeout_s: float = Field(default=30.0, gt=0, le=60)
    """For one tool call; the agent is told when it is over."""
    max_calls: int = Field(default=8, gt=0)
    """Tool calls of one message that are carried out."""
    max_result_chars: int = Field(default=8000, ge=100)
    """Characters of one tool result that the agent sees: the first quarter and the last three quarters."""


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    return Path((os.environ if environ is None else environ).get(CONFIG_VARIABLE) or EXAMPLE).resolve()


def load_config(path: Path) -> McpConfig:
    """Read and check a configuration file; raises McpConfigError."""
    try:
        return McpConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise McpConfigError(
            f"cannot read the MCP configuration {path}: {error.strerror}; set {CONFIG_VARIABLE}"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise McpConfigError(
            f"MCP configuration {path}, at `{place}`: {first['msg']} (got {str(first['input'])[:100]!r})"
        ) from error


def task_paths(path: Path, config: McpConfig) -> tuple[Path, ...]:
    """Return the task files of a configuration read from `path`."""
    return tuple((path.parent / name).resolve() for name in config.tasks)


def _value_of(name: str, known: Mapping[str, str], environ: Mapping[str, str]) -> str:
    if name in known:
        return known[name]
    if name.startswith("env:"):
        variable = name.removeprefix("env:")
        if variable in environ:
            return environ[variable]
        raise McpConfigError(
            f"the MCP configuration asks for ${{{name}}}, but the service has no variable {variable} "
            "(see --pass-env, and env_service.pass_env where the launcher starts the service)"
        )
    raise McpConfigError(
        f"the MCP configuration holds ${{{name}}}; known are {', '.join(f'${{{key}}}' for key in known)} and "
        "${env:NAME}"
    )


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value


def resolved(server: StdioServer | HttpServer, config_dir: Path, instance_dir: Path,
             environ: Mapping[str, str] | None = None) -> StdioServer | HttpServer:  # fmt: skip
    """Return a server with placeholders filled in for one instance; raises McpConfigError for an unknown one."""
    known = {"INSTANCE_DIR": str(instance_dir), "CONFIG_DIR": str(config_dir), "PYTHON": sys.executable}
    source = os.environ if environ is None else environ

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: _value_of(match[1], known, source), text)

    return type(server).model_validate(_mapped(server.model_dump(), fill))
