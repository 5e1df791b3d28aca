"""The page of the Python API: `python docs/api_page.py > docs/python_api.md`, from signatures and docstrings.

Reads the sources and imports none of them. `SECTIONS` says what is public; private members, and those without a
docstring of their own, are left out.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Section:
    """Section of the page: its title, what it is for, and what is imported from which module."""

    title: str
    told: str
    names: dict[str, tuple[str, ...]]


SECTIONS = (
    Section(
        "Environments",
        "An environment of your own is a class over `BaseEnv`; [Bring your own](bring_your_own.md) goes through one.",
        {
            "env_service.base": ("BaseEnv", "Message", "InitState", "StepInfo", "StepResult", "StateInfo"),
            "env_service.registry": ("Registry",),
            "env_service.tool_calls": ("structured_calls", "answer_to", "ToolCall", "BadCall"),
        },
    ),
    Section(
        "Environment clients",
        "What speaks to a running [environment service](env_service.md).",
        {
            "env_service.client": ("EnvClient", "AsyncEnvClient"),
            "env_service.protocol": (
                *("EnvServiceError", "EnvUnavailable", "EnvRequestError", "EnvTimeout", "EnvCrashed"),
                "RetryPolicy",
            ),
        },
    ),
    Section(
        "Task manager",
        "Strategies say what the agent that explores is told of actions that were tried before; graders say what an "
        "episode of a task is worth ([Task manager](task_manager.md)).",
        {
            "task_manager.explore": ("Strategy", "RandomStrategy", "CuriousStrategy", "make_strategy", "Exploration"),
            "task_manager.graders.base": ("Grader", "GradingError", "GraderConfigError"),
            "task_manager.graders.registry": ("GraderContext", "make_grader"),
        },
    ),
    Section(
        "Agent flows and context templates",
        "How an agent acts, and what it sees each turn ([Context and flows](context_manager.md)).",
        {
            "agentevolver.rollout.flows": ("AgentFlow", "Session", "Answer", "ReactFlow", "PlannerExecutorFlow"),
            "context_manager.template": ("ContextTemplate", "SideCall"),
        },
    ),
    Section(
        "Agents of your own, through the gateway",
        "An agent is a function that is called as `play(task, endpoint, world)`, or a program ([Gateway](gateway.md), "
        "[Train the agent you have](train_your_agent.md)).",
        {
            "agentevolver.rollout.gateway.server": ("GatewayEndpoint",),
            "agentevolver.rollout.world": ("HopWorld", "BlockingWorld"),
            "agentevolver.rollout.agent": ("Result", "AgentFailed"),
        },
    ),
    Section(
        "Step credit",
        "A stage of your own takes its place in the pipeline ([Step credit](advantage_processor.md)).",
        {"advantage_processor.pipeline": ("Stage", "StageContext", "Advantages", "AdvantageParts")},
    ),
    Section(
        "Pool of experience",
        "What was learned before, in a SQLite file ([Experience](experience_manager.md)).",
        {
            "experience_manager.pool": ("Pool",),
            "experience_manager.store": ("Store", "Hit", "Summary"),
            "experience_manager.experience": ("Experience", "Variant", "Category"),
        },
    ),
    Section(
        "Reading what a run left",
        "`Trajectory.from_dict` reads the records of `trajectories/` and `validation/`, whose lines "
        "`read_jsonl` gives ([Read a trajectory](read_a_trajectory.md)).",
        {
            "agentevolver.utils.files": ("read_jsonl",),
            "agentevolver.types": (
                *("Trajectory", "Task", "Step", "StopReason", "Outcome", "Reward", "GuidanceUse", "Attribution"),
                *("LabelStatus", "StepCredit", "CreditParts", "Diagnosis"),
            ),
            "agentevolver.trainer.monitor.results": (
                "records",
                "validations",
                "compare",
                "ValidationResult",
                "Comparison",
            ),
            "agentevolver.trainer.checkpoints": ("whole_checkpoints", "Checkpoint"),
        },
    ),
)


def page() -> str:
    """Return the page as markdown."""
    lines = [
        "# Python API",
        "",
        "What code of your own imports. What is not on this page may change without a word in the changelog.",
        "",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", section.told, ""]
        for module, names in section.names.items():
            known = definitions(module)
            lines += ["```python", *_wrapped(f"from {module} import ", names), "```", ""]
            for name in names:
                lines += _described(known[name])
    return "\n".join(lines).rstrip() + "\n"


def definitions(module: str) -> dict[str, Definition]:
    """Return what a module defines at its top, by name."""
    tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, Definition)}


def _wrapped(head: str, names: Sequence[str]) -> list[str]:
    line = head + ", ".join(names)
    return [line] if len(line) <= WIDTH else [f"{head}(", *(f"    {name}," for name in names), ")"]


def _described(node: Definition) -> list[str]:
    lines = [f"### {node.name}", ""]
    if not isinstance(node, ast.ClassDef):
        return [*lines, *_function(node), *_text(node)]
    known = [_source(base) for base in [*node.bases, *node.keywords]]
    bases = ", ".join(base for base in known if not base.startswith("_"))
    fields = [_source(item) for item in node.body if _is_public_field(item)]
    head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    marks = [f"@{_source(one)}" for one in node.decorator_list]
    body = [head, *(f"    {field}" for field in fields)] if fields else [f"{head} ..."]
    lines += ["```python", *marks, *body, "```", "", *_text(node)]
    for method in _methods(node):
        lines += [f"#### `{node.name}.{method.name}`", "", *_function(method), *_text(method)]
    return lines


def _is_public_field(item: ast.stmt) -> bool:
    if not isinstance(item, ast.AnnAssign | ast.Assign):
        return False
    target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
    return isinstance(target, ast.Name) and not target.id.startswith("_")


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the methods that are described: the constructor and public ones, of a Protocol also silent ones."""
    silent = any(_source(base) == "Protocol" for base in node.bases)
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            told = silent or ast.get_docstring(item) is not None
            if item.name == "__init__" or (told and not item.name.startswith("_")):
                yield item


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return a signature in a block of code; one that is long has an argument a line."""
    marks = [f"@{_source(one)}" for one in node.decorator_list]
    head = f"{'async def' if isinstance(node, ast.AsyncFunctionDef) else 'def'} {node.name}"
    returns = "" if node.returns is None else f" -> {_source(node.returns)}"
    arguments = _arguments(node.args)
    line = f"{head}({', '.join(arguments)}){returns}: ..."
    if len(line) <= WIDTH:
        return ["```python", *marks, line, "```", ""]
    return ["```python", *marks, f"{head}(", *(f"    {one}," for one in arguments), f"){returns}: ...", "```", ""]


def _source(node: ast.AST) -> str:
    """Return an expression as it is written here, with double quotes."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def _arguments(given: ast.arguments) -> list[str]:
    """Return the arguments one by one, as they are written."""
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    out = [_argument(one, value) for one, value in zip(positional, [*defaults, *given.defaults], strict=True)]
    if given.posonlyargs:
        out.insert(len(given.posonlyargs), "/")
    if given.vararg is not None:
        out.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        out.append("*")
    out += [_argument(one, value) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return out + ([f"**{_argument(given.kwarg, None)}"] if given.kwarg is not None else [])


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    if one.annotation is None:
        return one.arg + ("" if default is None else f"={_source(default)}")
    return f"{one.arg}: {_source(one.annotation)}" + ("" if default is None else f" = {_source(default)}")


def _text(node: Definition) -> list[str]:
    """Return a docstring as markdown: a paragraph a line, `Args:`, `Returns:` and `Raises:` as lists."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text) if text else ():
        head, *rest = block.splitlines()
        if re.fullmatch(r"(Args|Returns|Raises|Yields):", head):
            lines += [f"{head}", "", *_items(inspect.cleandoc("\n".join(["", *rest])).splitlines()), ""]
        elif any(line.startswith("- ") for line in (head, *rest)):
            lines += [*_list(block.splitlines()), ""]
        else:
            lines += [" ".join(block.split()), ""]
    return lines


def _items(lines: Sequence[str]) -> list[str]:
    """Return the entries of `Args:` as items; further lines of one are indented."""
    out: list[str] = []
    for line in lines:
        if line.startswith(" ") and out:
            out[-1] += f" {line.strip()}"
        else:
            out.append(re.sub(r"^([\w, *]+): ", lambda found: f"* `{found[1]}`: ", line) if ": " in line else line)
    return [line if line.startswith("* ") else f"* {line}" for line in out]


def _list(lines: Sequence[str]) -> list[str]:
    out: list[str] = []
    for line in lines:
        if line.startswith("- "):
            out += ["", f"* {line[2:]}"] if out and not out[-1].startswith("* ") else [f"* {line[2:]}"]
        elif out:
            out[-1] += f" {line.strip()}"
        else:
            out.append(line.strip())
    return out


if __name__ == "__main__":
    sys.stdout.write(page())
