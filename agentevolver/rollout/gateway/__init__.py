"""Gateway: agents that speak a chat API are served by the policy, and their calls become training samples."""
