"""Shared helpers of every package: files, processes, web. Nothing here imports another part of the project."""
