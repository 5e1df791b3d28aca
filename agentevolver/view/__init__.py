"""Run dashboard: a web page of runs, while they train and afterwards (`agentevolver view RUN...`).

It reads the runs' folders, follows growing files by offset, and writes only to the experience pool, through its API.
"""
