"""Run dashboard: a web page of what a run writes to its folder,
while it trains and afterwards (`python launcher.py --view FOLDER`).

Reads the folder and nothing else, follows growing files by offset, and writes only to the experience pool, through its
own API.
"""
