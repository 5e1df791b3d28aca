"""`agentevolver completion SHELL`: a script that completes verbs, options, experiments and files.

Nothing of ours runs while a person types: verbs and options stand in the script, experiments are folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentevolver.commands.verbs import PROG, Parser

SHELLS = ("bash", "zsh", "fish")
# What the first argument of a verb is.
EXPERIMENTS, YAML = "experiments", "yaml"
KINDS = {
    **dict.fromkeys(("resume", "view", "stop", "export", "eval", "chat"), EXPERIMENTS),
    **dict.fromkeys(("run", "doctor", "table"), YAML),
}
Words = Mapping[str, Sequence[str]]


def parser() -> Parser:
    """Return the arguments of the verb."""
    made = Parser(
        "completion",
        "Prints a script for a shell. bash: source <(agentevolver completion bash) in ~/.bashrc; zsh: the same with "
        "zsh, in ~/.zshrc; fish: agentevolver completion fish | source",
    )
    made.add_argument("shell", choices=SHELLS)
    return made


def script(shell: str, sentences: Mapping[str, str], words: Words) -> str:
    """Return the script for a shell.

    Args:
        shell: of `SHELLS`.
        sentences: what each verb does.
        words: each verb's options and fixed arguments.
    """
    return {"bash": bash, "zsh": zsh}[shell](words) if shell != "fish" else fish(sentences, words)


def bash(words: Words) -> str:
    """Return the script for bash."""
    cases = "\n".join(f"        {name}) words={' '.join(own)!r} ;;" for name, own in words.items() if own)
    first = "\n".join(
        f"        {'|'.join(name for name, kind in KINDS.items() if kind == wanted)}) {script} ;;"
        for wanted, script in (
            (EXPERIMENTS, "_agentevolver_experiments; dirs=-d"),
            (YAML, "files='!*.y?(a)ml'"),
        )
    )
    return f"""\
# Completion of {PROG}; printed by `{PROG} completion bash`.
_agentevolver_experiments() {{
    local folder
    for folder in experiments/*/*/launches; do
        [[ -d $folder ]] && folder=${{folder#experiments/}} && words+=" ${{folder%/launches}}"
    done
}}

_agentevolver() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}} words= files= dirs=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{" ".join(words)} --help --version" -- "$current"))
        return
    fi
    case $verb in
{cases}
    esac
    if [[ $current != -* ]]; then
        [[ $verb == completion ]] || words=
        case $verb in
{first}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ -n $dirs ]] && COMPREPLY+=($(compgen -d -- "$current"))
    [[ -n $files ]] && COMPREPLY+=($(compgen -f -X "$files" -- "$current") $(compgen -d -S / -- "$current"))
    return 0
}}

[[ -n ${{BASH_VERSION-}} ]] && shopt -s extglob
complete -F _agentevolver {PROG}"""


def zsh(words: Words) -> str:
    """Return the script for zsh, which runs bash's."""
    return f"autoload -Uz compinit bashcompinit\n(( $+functions[compdef] )) || compinit -u\nbashcompinit\n{bash(words)}"


def fish(sentences: Mapping[str, str], words: Words) -> str:
    """Return the script for fish."""
    lines = [
        f"# Completion of {PROG}; printed by `{PROG} completion fish`.",
        "function __agentevolver_experiments",
        "    for folder in experiments/*/*/launches",
        "        string replace -r '^experiments/(.*)/launches$' '$1' -- $folder",
        "    end",
        "end",
        "function __agentevolver_yaml",
        "    __fish_complete_suffix .yaml | string match -r '^[^\\t]*(?:/|\\.ya?ml)(?:\\t.*)?$'",
        "end",
        f"complete -c {PROG} -f",
        f"complete -c {PROG} -n __fish_use_subcommand -l version -d 'print the version'",
    ]
    for name, sentence in sentences.items():
        lines.append(f"complete -c {PROG} -n __fish_use_subcommand -a {name} -d {sentence!r}")
    for name, own in words.items():
        seen = f"complete -c {PROG} -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{seen} -l {text[2:]}" if text.startswith("--") else f"{seen} -a {text}" for text in own]
        if KINDS.get(name) == EXPERIMENTS:
            lines.append(f"{seen} -a '(__agentevolver_experiments) (__fish_complete_directories)'")
        elif KINDS.get(name) == YAML:
            lines.append(f"{seen} -a '(__agentevolver_yaml)'")
    return "\n".join(lines)
