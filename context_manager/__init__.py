"""What the policy sees each turn, and the training samples made of it. Imports neither torch nor verl."""
