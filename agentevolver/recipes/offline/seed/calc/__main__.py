"""Builds the seed policy of the worlds `calc` and `propose`: a small Qwen2, trained from scratch on noisy
demonstrations of both roles.

`python -m agentevolver.recipes.offline.seed.calc --out DIR [--narrow] [--seed N]` writes the model for
`from_pretrained` and vLLM, and build.json with the command, the settings and the measurements. `--narrow` adds a
hundred steps in which proposals have only 2 to 4 operands. The same seed on the same build of torch gives the same
weights.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import torch

from agentevolver.recipes.offline.seed.calc.build import NARROWING, RECIPE, build
from agentevolver.recipes.offline.seed.calc.demonstrator import CalcHabits


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.recipes.offline.seed.calc", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--narrow", action="store_true", help="a proposer that knows 2 to 4 operands alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=RECIPE.steps, help="training steps")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    recipe, narrowing = replace(RECIPE, steps=args.steps), NARROWING if args.narrow else None
    chosen = f"--seed {args.seed} --steps {args.steps}{' --narrow' if args.narrow else ''}"
    command = f"python -m agentevolver.recipes.offline.seed.calc {chosen}"
    for name, measured in build(args.out, args.seed, recipe, CalcHabits(), command, narrowing=narrowing).items():
        logging.info("%s: %s", name, measured)


if __name__ == "__main__":
    main()
