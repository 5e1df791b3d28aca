"""AppWorld: everyday apps operated by Python code that the agent writes.

The pip package lives in a venv of its own and is never imported here.
"""
