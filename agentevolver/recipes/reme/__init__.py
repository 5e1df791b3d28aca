"""ReMe: the experience pool as an HTTP service, and a backend that is its client."""
