"""`python -m agentevolver.llm`: command line of the roles' language models."""

import sys

from agentevolver.cli.commands.llm import main

if __name__ == "__main__":
    sys.exit(main())
