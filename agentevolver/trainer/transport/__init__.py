"""Transport between the processes of a run, closed to everybody else.

Everything listens on loopback (`utils.net`, `worker`), and what would run or answer whatever reaches it asks for the
run's key besides (`run_key`): TransferQueue by CURVE, vLLM's server by a bearer token. Weights go through a socket in a
folder of the run's user alone (`weights`).
"""
