"""An S3 for the benchmarks: moto's, in a process of its own, whose PUTs may be slower."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "benchmark"
#: moto is served one request at a time; only the added delay is not.
_SERVER = """
import os, sys, threading, time
from moto.moto_server.werkzeug_app import create_backend_app
from waitress.server import create_server

delay_s, one_at_a_time, s3 = float(sys.argv[1]) / 1000, threading.Lock(), create_backend_app("s3")

def serve(request, start):
    if request["REQUEST_METHOD"] == "PUT":
        time.sleep(delay_s)
    with one_at_a_time:
        return s3(request, start)

server = create_server(serve, host="127.0.0.1", port=0, threads=16, max_request_body_size=64 * 1024**2)
threading.Thread(target=server.run, daemon=True).start()
print(server.effective_port, flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextmanager
def s3(put_delay_ms: float) -> Iterator[str]:
    """Yield the endpoint of an S3 with one bucket; it ends with this process, however that dies."""
    command = [sys.executable, "-c", _SERVER, str(put_delay_ms)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]  # the three streams
        try:
            endpoint = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            _create_bucket(endpoint)
            yield endpoint
        finally:
            process.kill()


def _create_bucket(endpoint: str) -> None:
    import botocore.session

    session = botocore.session.get_session()
    session.set_credentials("benchmark", "benchmark")
    client = session.create_client("s3", region_name="us-east-1", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    client.close()
