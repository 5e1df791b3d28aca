"""Hosting: instances, their worker processes, and the Ray actors or fork servers that start them."""
