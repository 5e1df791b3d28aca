"""Plugin that verl loads in every process, through the entry point `verl.plugins`."""

from agentevolver.trainer.transport.worker import close_off
from agentevolver.trainer.verl_plugin import platform as platform

# verl imports this module while verl itself is being imported. So only the platform is registered here, and patches of
# other modules wait for their import. Engine, agent loop and trainer are loaded by configuration.
close_off()
