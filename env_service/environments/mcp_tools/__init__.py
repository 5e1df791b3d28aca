"""Any MCP servers as an environment, with verifiable tasks; registered as "mcp"."""
