"""`python -m experience_manager`: commands on the experience pool."""

import sys

from agentevolver.cli.commands.experience_manager import main

if __name__ == "__main__":
    sys.exit(main())
