"""What the device groups for NVIDIA GPUs load in every worker (`actor_rollout_ref.model.external_lib`): fast kernels without flash-attn."""

from agentevolver.verl_plugin import log_probs, value_head, varlen_attention

varlen_attention.register()
log_probs.install()
value_head.leave_trl_alone()
