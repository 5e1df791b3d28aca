"""Tests, and what they share. A package, because verl installs one of that name that would hide it."""
