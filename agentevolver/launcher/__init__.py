"""Launcher: starts a run's services in order and its main job, and ends everything it started.

Guarantees: every process it started ends with it (Ctrl-C, SIGTERM, an error, the end of the run), within a bounded
time; a service that dies is reported at once with the end of its log, and is started again a bounded number of times;
what a killed launcher left is found again by `--kill`, which touches nothing else. Errors are one line on stderr: exit
code 2 for what was asked for (options, configuration), 1 for what happened (a port, a service, a disk); otherwise the
exit code is the main job's.
"""
