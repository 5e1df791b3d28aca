"""`python -m experience_manager`: look at the pool, change it, fill it, serve it."""

import sys

from agentevolver.commands.experience_manager import main

if __name__ == "__main__":
    sys.exit(main())
