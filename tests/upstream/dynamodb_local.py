"""AWS's DynamoDB Local, as an engine for the tests of this project."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, final

from tests.support.dynoxide import DynamoDBProcess
from tests.upstream.maven import jars

MAIN: Final = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"


@final
class DynamoDBLocal(DynamoDBProcess):
    """DynamoDB Local with both tables, in memory."""

    START_DEADLINE_S = 60.0

    def __init__(self) -> None:
        self._folder = jars("dynamodb-local")
        super().__init__(Path(os.devnull))

    def __enter__(self) -> DynamoDBLocal:
        try:
            self.start()
            self.create_tables()
        except BaseException:
            self.kill()
            raise
        return self

    def command(self) -> list[str]:
        options = ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx1g", f"-Djava.library.path={self._folder}"]
        options += ["-Djava.net.preferIPv4Stack=true"]  # tests look for its socket among those of IPv4
        serve = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self._port)]
        return ["java", *options, "-cp", f"{self._folder}/*", MAIN, *serve]
