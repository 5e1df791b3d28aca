"""Export of a checkpoint as a Hugging Face folder with a model card, and upload to the hub."""
