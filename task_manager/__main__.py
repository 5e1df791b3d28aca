"""`python -m task_manager`: see `agentevolver.commands.task_manager`."""

import sys

from agentevolver.commands.task_manager import main

sys.exit(main())
