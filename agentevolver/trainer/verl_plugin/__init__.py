"""Plugin that verl loads in every process, through the entry point `verl.plugins`.

verl imports this module while it is itself being imported, so only the platform is registered here, and what is to be
changed in modules that are not there yet is noted. The engine comes in through
`actor_rollout_ref.model.external_lib`, the agent loop and the trainer where they are used; all of that is
configuration.
"""

from agentevolver.trainer.transport.worker import close_off
from agentevolver.trainer.verl_plugin import platform as platform

close_off()
