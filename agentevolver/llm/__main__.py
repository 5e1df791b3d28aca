"""`python -m agentevolver.llm`."""

import sys

from agentevolver.llm.cli import main

if __name__ == "__main__":
    sys.exit(main())
