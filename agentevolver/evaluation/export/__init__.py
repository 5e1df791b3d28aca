"""Export: weights of a checkpoint as a Hugging Face folder with a model card, and to the hub."""
