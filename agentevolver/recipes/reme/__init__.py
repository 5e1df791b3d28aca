"""ReMe: the experience pool as a service over HTTP, and a backend that asks one."""
