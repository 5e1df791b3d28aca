"""HTTP servers of the project: who may ask (`access`), what is refused (`shield`), uvicorn's limits (`server`)."""
