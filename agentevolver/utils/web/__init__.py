"""HTTP servers of the project: access rules (`access`), refusals (`shield`), uvicorn's limits (`server`)."""
