"""Run dashboard: a web page of what runs write to their folders, while they train and afterwards (`agentevolver view
RUN...`), beside each other where there are several.

Reads the folders, follows growing files by offset, and writes only to the experience pool, through its own API.
"""
