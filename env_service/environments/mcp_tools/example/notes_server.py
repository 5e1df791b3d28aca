"""A small MCP server that keeps notes, with its state in one JSON file: `python notes_server.py FILE` speaks stdio.

Every refusal names what to do; `ToolError` carries that text to the client (the SDK hides the text of other
exceptions).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

_MOST_NOTES = 1000
_LONGEST = 4000


class Notes:
    """Notes by key, written to the file after every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def save(self) -> None:
        """Replace the file in one step, so that a reader never sees half of it."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.notes, ensure_ascii=False, indent=1), encoding="utf-8")
        os.replace(part, self.path)

    def text(self, key: str) -> str:
        """Return a note; raises ToolError that names the keys there are."""
        if key not in self.notes:
            raise ToolError(f"there is no note {key!r}; the keys are: {', '.join(sorted(self.notes)) or 'none'}")
        return self.notes[key]


def build_server(path: Path) -> MCPServer:
    """Return a server whose notes live in the file at `path`."""
    server = MCPServer("notes")
    store = Notes(path)

    @server.tool()
    def note_list(prefix: str = "") -> list[str]:
        """List the keys of all notes, or of those whose key begins with a prefix."""
        return sorted(key for key in store.notes if key.startswith(prefix))

    @server.tool()
    def note_read(key: str) -> str:
        """Read the note under a key."""
        return store.text(key)

    @server.tool()
    def note_write(key: str, text: str, overwrite: bool = False) -> str:
        """Write a note under a key. A note that exists is only replaced with overwrite=true."""
        if key in store.notes and not overwrite:
            raise ToolError(f"note {key!r} exists; pass overwrite=true to replace it")
        if len(store.notes) >= _MOST_NOTES or len(key) + len(text) > _LONGEST:
            raise ToolError(f"a note may have {_LONGEST} characters, and there may be {_MOST_NOTES} notes")
        store.notes[key] = text
        store.save()
        return f"wrote {key}"

    @server.tool()
    def note_delete(key: str) -> str:
        """Delete the note under a key."""
        store.text(key)
        del store.notes[key]
        store.save()
        return f"deleted {key}"

    @server.tool()
    def note_search(word: str) -> list[str]:
        """Return the keys of the notes whose text contains a word, whatever its case."""
        return sorted(key for key, text in store.notes.items() if word.casefold() in text.casefold())

    store.save()
    return server


if __name__ == "__main__":
    build_server(Path(sys.argv[1])).run(transport="stdio")
