"""`python -m agentevolver`: the same as the command `agentevolver`."""

import sys

from agentevolver.cli import main

if __name__ == "__main__":
    sys.exit(main())
