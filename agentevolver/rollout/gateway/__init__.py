"""Gateway: serves the policy to agents through chat APIs, and turns their calls into training samples."""
