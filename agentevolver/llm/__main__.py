import sys

from agentevolver.cli.commands.llm import main

if __name__ == "__main__":
    sys.exit(main())
