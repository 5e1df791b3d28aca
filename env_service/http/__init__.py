"""HTTP routes, schemas, and server of the environment service."""
