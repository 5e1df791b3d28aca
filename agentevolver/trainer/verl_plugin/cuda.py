"""Plugin for NVIDIA GPUs, loaded in every worker (`actor_rollout_ref.model.external_lib`)."""

from agentevolver.trainer.verl_plugin import log_probs, resharding, value_head, varlen_attention

varlen_attention.register()
log_probs.install()
resharding.register()
value_head.leave_trl_alone()
