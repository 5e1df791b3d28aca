"""HTTP: routes, schemas, and the server of the environment service."""
