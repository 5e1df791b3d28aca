"""AppWorld: everyday apps operated by Python code that the agent writes. The class is `env.AppworldEnv`; see README.md.

The pip package `appworld` lives in a venv of its own and is never imported here; this folder can only be imported by
its full name.
"""
