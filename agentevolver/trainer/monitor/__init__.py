"""Monitoring of a run: logs, progress output, watchdog, and retention of its files."""
