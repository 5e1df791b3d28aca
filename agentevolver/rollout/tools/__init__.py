"""Native tool calls: tools as JSON schemas, and the formats in which models write calls."""
