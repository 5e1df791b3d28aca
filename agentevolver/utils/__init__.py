"""Shared helpers; they import no other part of the project."""
