"""Run dashboard: a web page that shows runs during and after training (`agentevolver view RUN...`).

The page only reads the runs' folders, except for edits of the experience pool, which go through its API.
"""
