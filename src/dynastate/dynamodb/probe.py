"""Plain requests to an engine, for checks of its behaviour: not metered, and cleaned up."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import botocore.exceptions as boto_errors

from dynastate.dynamodb.client import make_client
from dynastate.dynamodb.failures import Fate, fate_of
from dynastate.errors import UnavailableError
from dynastate.format.keys import SPECS, Role
from dynastate.runtime import Limits
from dynastate.settings import Settings

#: A wire item: names to attribute values.
Wire = dict[str, Any]
#: Seconds until a throttled request is refused, and the longest between two tries.
DEADLINE_S: Final = 30
PAUSE_MAX_S: Final = 0.2
#: Threads of a check of what several clients do at once.
THREADS: Final = 8


class RefusedError(Exception):
    """The engine's refusal of a request, by its code. It never leaves the checks."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Probe:
    """Requests about items of a namespace of its own, which `clean` deletes."""

    def __init__(self, settings: Settings, namespace: str = "") -> None:
        self.names: dict[Role, str] = {"delta": settings.delta_table, "snapshot": settings.snapshot_table}
        self.namespace = namespace or f"doctor-{uuid4().hex[:12]}"
        self._client = make_client(settings)
        self._stores: set[tuple[Role, str]] = set()

    def send(self, operation: str, **arguments: Any) -> Any:
        """Send one request, by the name of boto3's method; one that is throttled is sent again."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return getattr(self._client, operation)(**arguments)
            except boto_errors.ClientError as refused:
                error = refused.response.get("Error", {})
                if fate_of(refused) is not Fate.THROTTLED or time.monotonic() > deadline_s:
                    raise RefusedError(str(error.get("Code")), str(error.get("Message"))) from refused
            except (boto_errors.BotoCoreError, RuntimeError) as failed:
                raise UnavailableError(f"the engine does not answer: {failed}", operation=operation) from failed
            time.sleep(random.uniform(0, PAUSE_MAX_S))  # noqa: S311  # no secret

    def key(self, role: Role, sort: str, store: str = "0") -> Wire:
        """A key below this namespace; `store` names its partition key."""
        self._stores.add((role, store))
        return {SPECS[role].hash_key: {"S": self._partition(store)}, SPECS[role].range_key: {"S": sort}}

    def put(self, role: Role, sort: str, item: Wire, store: str = "0", **more: Any) -> Any:
        key = self.key(role, sort, store)
        return self.send("put_item", TableName=self.names[role], Item=key | item, **more)

    def get(self, role: Role, sort: str, store: str = "0") -> Wire | None:
        key = self.key(role, sort, store)
        item = self.send("get_item", TableName=self.names[role], Key=key, ConsistentRead=True).get("Item")
        return None if item is None else {name: value for name, value in item.items() if name not in key}

    def update(self, role: Role, sort: str, expression: str, store: str = "0", **more: Any) -> Any:
        key = self.key(role, sort, store)
        return self.send("update_item", TableName=self.names[role], Key=key, UpdateExpression=expression, **more)

    def delete(self, role: Role, sort: str, store: str = "0", **more: Any) -> Any:
        return self.send("delete_item", TableName=self.names[role], Key=self.key(role, sort, store), **more)

    def write(self, role: Role, items: Sequence[Wire]) -> Any:
        """One BatchWriteItem of whole items."""
        requests = [{"PutRequest": {"Item": item}} for item in items]
        return self.send("batch_write_item", RequestItems={self.names[role]: requests})

    def page(self, role: Role, store: str, low: str = " ", high: str = "\U0010ffff", **more: Any) -> Any:
        """One page of a Query for sort keys from `low` to `high`."""
        return self.send(
            "query",
            TableName=self.names[role],
            ConsistentRead=True,
            KeyConditionExpression="#h = :h AND #r BETWEEN :low AND :high",
            ExpressionAttributeNames={"#h": SPECS[role].hash_key, "#r": SPECS[role].range_key},
            ExpressionAttributeValues={":h": {"S": self._partition(store)}, ":low": {"S": low}, ":high": {"S": high}},
            **more,
        )

    def pages(self, role: Role, store: str, **more: Any) -> list[list[Wire]]:
        """All pages of a Query for a partition key."""
        pages: list[list[Wire]] = []
        start: Mapping[str, Any] = {}
        while True:
            page = self.page(role, store, **more, **start)
            pages.append(page["Items"])
            if not page.get("LastEvaluatedKey"):
                return pages
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def at_once(self, work: Any, times: int) -> list[Any]:
        """The results of `work(number)`, from several threads."""
        with ThreadPoolExecutor(THREADS, thread_name_prefix="dynastate-doctor") as pool:
            return list(pool.map(work, range(times)))

    def timed_ms(self, work: Any, times: int) -> list[float]:
        """Milliseconds that `work(number)` takes each time, sorted."""
        took = []
        for number in range(times):
            begin = time.perf_counter()
            work(number)
            took.append(1_000 * (time.perf_counter() - begin))
        return sorted(took)

    def clean(self) -> int:
        """Delete everything that was written, and return how many items."""
        deleted = 0
        for role, store in sorted(self._stores):
            names = (SPECS[role].hash_key, SPECS[role].range_key)
            keys = [{name: item[name] for name in names} for page in self.pages(role, store) for item in page]
            size = Limits.writes_max
            for start in range(0, len(keys), size):
                waiting: Any = {
                    self.names[role]: [{"DeleteRequest": {"Key": key}} for key in keys[start : start + size]]
                }
                while waiting:
                    waiting = self.send("batch_write_item", RequestItems=waiting).get("UnprocessedItems")
            deleted += len(keys)
        return deleted

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _partition(self, store: str) -> str:
        return f"{self.namespace}/0/{store}/default#0"
