"""Monitoring of a run while it goes on: logs, progress output, the watchdog; and how long its files are kept."""
