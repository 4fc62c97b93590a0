"""Answer HTTP requests from the state of a query while it runs.

`open_state` with `follow=True` looks for a new batch each second; `GET /ann` answers from the newest one.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sandbox import Sandbox, print_batch

import dynastate

BATCHES = [[("ann", 25), ("bob", 40)], [("ann", 15), ("cho", 60)]]
SHOWN_WITHIN_S = 30


class Server(ThreadingHTTPServer):
    """A server with a thread for each request; all of them share the state."""

    def __init__(self, state: dynastate.StateFollower) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.state = state
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """One request: the path is the user, and the answer the row of this user, or null."""

    server: Server

    def do_GET(self) -> None:
        body = json.dumps(self.server.state.get({"user": self.path[1:]})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""


def ask(server: Server) -> None:
    for user in ("ann", "cho"):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{user}", timeout=10) as answer:
            print(f"GET /{user}: {answer.read().decode()}")


def wait_for(state: dynastate.StateFollower, version: int) -> None:
    deadline_s = time.monotonic() + SHOWN_WITHIN_S
    while state.version < version:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"version {version} was not shown within {SHOWN_WITHIN_S} s")
        time.sleep(0.1)


def main() -> None:
    with Sandbox() as sandbox:
        builder = dynastate.configure(
            sandbox.builder(), checkpoint=True, endpoint=sandbox.endpoint, region=sandbox.region
        )
        spark = builder.getOrCreate()

        sandbox.add("orders", BATCHES[:1])
        orders = sandbox.stream(spark, "orders", "user string, euros int")
        writer = orders.groupBy("user").count().writeStream.outputMode("update").foreachBatch(print_batch)
        query = writer.option("checkpointLocation", "dynastate://orders/counts").start()
        query.processAllAvailable()

        # The service could as well be a process of its own: it needs the tables, and neither Spark nor Java.
        with (
            dynastate.open_state("orders/0", follow=True, endpoint=sandbox.endpoint, region=sandbox.region) as state,
            Server(state) as server,
        ):
            ask(server)

            sandbox.add("orders", BATCHES[1:])
            query.processAllAvailable()
            wait_for(state, version=2)
            ask(server)

            server.shutdown()
        query.stop()


if __name__ == "__main__":
    main()
