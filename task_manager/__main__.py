"""`python -m task_manager`: see `agentevolver.cli.commands.task_manager`."""

import sys

from agentevolver.cli.commands.task_manager import main

sys.exit(main())
