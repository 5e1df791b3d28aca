"""Transport between the processes of a run: loopback only, and protected by the run's key."""
