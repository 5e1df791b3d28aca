"""Plugin of the device groups for NVIDIA GPUs, loaded in every worker (`actor_rollout_ref.model.external_lib`).

Fast kernels without flash-attn, and an engine that goes on from a checkpoint of another number of GPUs.
"""

from agentevolver.trainer.verl_plugin import log_probs, resharding, value_head, varlen_attention

varlen_attention.register()
log_probs.install()
resharding.register()
value_head.leave_trl_alone()
