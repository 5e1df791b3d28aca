"""Launcher: starts a run's services in order, then its main job, and in the end stops every process it started.

`--kill` finds what a killed launcher left behind and touches nothing else. Exit codes: 2 for a usage or configuration
error, 1 for a failure (port, service, disk), otherwise the main job's. Errors are printed as one line on stderr.
"""
