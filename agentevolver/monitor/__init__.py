"""What a run tells while it goes on: logs, progress output, the watchdog; and how long its files are kept."""
