"""What verl loads of ours in every process, through the entry point `verl.plugins`.

verl imports this module while it is itself being imported, so only the platform is registered here. The engine comes in through
`actor_rollout_ref.model.external_lib`, the agent loop and the trainer where they are used; all of that is configuration.
"""

from agentevolver.verl_plugin import platform as platform
