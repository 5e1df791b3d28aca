"""HTTP server of the project's four services.

Who may ask: `access`. What is refused before the application sees it: `shield`. uvicorn with limits on every
connection: `server`.
"""
