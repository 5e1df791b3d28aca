"""A service to launch in tests: answers /healthz after a while, dies when told to; standard library only."""

import argparse
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--name", default="service")
parser.add_argument("--journal", type=Path, help="one line for each start, health and stop")
parser.add_argument("--well-after", type=float, default=0.0, help="answer 503 until then")
parser.add_argument("--die-when", type=Path, help="remove this file and exit 3 as soon as it exists")
parser.add_argument("--die-at-once", action="store_true")
parser.add_argument("--child", action="store_true", help="start a grandchild in a session of its own")
parser.add_argument("--launch-id", help="say that this launch has started it")
parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
options = parser.parse_args()


def journal(event: str) -> None:
    if options.journal:
        with options.journal.open("a") as file:
            file.write(f"{options.name} {event}\n")


journal("start")
print(f"{options.name}: hello from {os.getpid()}", flush=True)
if options.die_at_once:
    print("the reason is written here", flush=True)
    sys.exit(3)
if options.child:
    subprocess.Popen(["sleep", "600"], start_new_session=True)

began = time.monotonic()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        well = time.monotonic() - began >= options.well_after
        self.send_response(200 if well else 503)
        self.end_headers()
        facts = {
            "name": options.name,
            "version": "0",
            "launch_id": options.launch_id or os.environ.get("AGENTEVOLVER_RUN_ID"),
        }
        self.wfile.write(json.dumps(facts).encode() if well else b"warming up")
        if well:
            journal("well")

    def log_message(self, *arguments: object) -> None:
        pass


def watch() -> None:
    while options.die_when is not None:
        if options.die_when.exists():
            options.die_when.unlink()
            print("the reason is written here", flush=True)
            os._exit(3)
        time.sleep(0.02)


def stop(*_: object) -> None:
    if not options.stubborn:
        journal("stop")
        os._exit(0)


signal.signal(signal.SIGTERM, stop)
http.server.ThreadingHTTPServer.allow_reuse_address = True
server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
threading.Thread(target=watch, daemon=True).start()
server.serve_forever()
