"""`python -m task_manager`: see `cli`."""

import sys

from task_manager.cli import main

sys.exit(main())
