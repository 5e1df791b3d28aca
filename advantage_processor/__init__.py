"""Self-attributing: labels the steps of a trajectory, and turns labels and outcomes into token advantages."""

# Only the settings, so that reading a configuration does not import torch.
from advantage_processor.settings import AttributionSettings

__all__ = ["AttributionSettings"]
