"""`python -m agentevolver.llm`."""

import sys

from agentevolver.commands.llm import main

if __name__ == "__main__":
    sys.exit(main())
