"""`python -m task_manager`: see `cli`."""

import sys

from agentevolver.commands.task_manager import main

sys.exit(main())
