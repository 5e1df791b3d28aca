"""Self-attributing: label the steps of a trajectory, turn labels and outcome into token advantages.

`AttributionSettings` is its configuration; `attribution.Attributor` labels inside the episode; `processor.Processor`
makes advantages in the trainer. Only the settings are imported here, so that reading a configuration needs no torch.
"""

from advantage_processor.settings import AttributionSettings

__all__ = ["AttributionSettings"]
