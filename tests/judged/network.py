"""Faults between one sidecar and its services, DynamoDB and S3, as a rule of fault proxies."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final, final

from tests.support.fault_proxy import S3, CutError, Forward, Reply, Request, error

#: Of 1,000 requests so many meet each fault; the rest pass.
RATES: Final = {"slow": 100, "lost": 40, "not sent": 20, "late": 30, "throttled": 30, "in part": 150}
SLOW_S: Final = 0.2
#: Outages: of nothing, of the answers to updates, of everything.
NONE, UPDATES, ALL = "", "updates", "all"
IN_DOUBT: Final = {"UpdateItem": "lost", "GetItem": "not sent"}
#: So long a request may be under way after its sender has seen the connection end.
LATE_S: Final = 2.0
#: Operations that write rows, before a version list or a snapshot names them.
ROWS_WRITTEN: Final = ("BatchWriteItem", "PUT")
SLOW_DOWN: Final = Reply(
    503, b"<Error><Code>SlowDown</Code><Message>said the proxy</Message></Error>", "application/xml"
)


@final
class Network:
    """Delays requests, loses them or their answers, delivers them late, and throttles; counts what it did.

    During an `outage` no request has an answer; in one of `UPDATES` no update has, although each is applied, and no
    item can be read to find that out. Once it is healed, everything passes.
    """

    def __init__(self, chance: random.Random, *, may_be_late: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self.outage = NONE
        #: Called once: before the append of a version is sent on; when rows are written, and not answered yet.
        self.before_append: Callable[[], object] | None = None
        self.after_rows: Callable[[], object] | None = None
        self._chance = chance
        self._may_be_late = may_be_late
        self._is_healed = False
        self._late: list[threading.Thread] = []

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if request.operation == "UpdateItem" and '"list/' in json.dumps(request.body["Key"]):
            act, self.before_append = self.before_append, None
            if act is not None:
                act()
        reply = self._reply(request, forward)
        if request.operation in ROWS_WRITTEN:
            act, self.after_rows = self.after_rows, None
            if act is not None:
                act()
        return reply

    def _reply(self, request: Request, forward: Forward) -> Reply:
        fault = self._fault(request.operation)
        self.counts[f"{fault} in S3" if request.service == S3 else fault] += 1
        if fault == "slow":
            time.sleep(self._chance.uniform(0, SLOW_S))
        elif fault == "lost":
            forward(request)
            raise CutError
        elif fault == "not sent":
            raise CutError
        elif fault == "late":
            if not self._may_be_late:
                raise CutError
            self._send_late(request, forward)
            raise CutError
        elif fault == "throttled":
            return SLOW_DOWN if request.service == S3 else error("ThrottlingException")
        elif fault == "in part":
            return self._in_part(request, forward)
        return forward(request)

    def heal(self) -> None:
        """Let everything pass from now on, and wait for what is late."""
        self.outage, self._is_healed = NONE, True
        for thread in self._late:
            thread.join()

    def _fault(self, operation: str) -> str:
        if self._is_healed:
            return "none"
        if self.outage == ALL:
            return self._chance.choice(("lost", "not sent", "late"))
        if self.outage == UPDATES and operation in IN_DOUBT:
            return IN_DOUBT[operation]
        at = self._chance.randrange(1_000)
        for fault, rate in RATES.items():
            at -= rate
            if at < 0:
                return fault
        return "none"

    def _send_late(self, request: Request, forward: Forward) -> None:
        def send() -> None:
            time.sleep(self._chance.uniform(0, LATE_S))
            with suppress(HTTPException, OSError):
                forward(request)

        self._late.append(threading.Thread(target=send, name="late"))
        self._late[-1].start()

    def _in_part(self, request: Request, forward: Forward) -> Reply:
        """Do about half of a batch; the rest is unprocessed. Of an object, send about half, and end the connection."""
        if request.operation == "GET":
            reply = forward(request)
            return reply._replace(raw=reply.raw[: len(reply.raw) // 2], content_length=len(reply.raw))
        if request.operation not in ("BatchWriteItem", "BatchGetItem"):
            return forward(request)
        done: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for table, asked in request.body["RequestItems"].items():
            pieces = asked["Keys"] if isinstance(asked, dict) else asked
            is_done = [self._chance.random() < 0.5 for _ in pieces]
            for part, which in ((done, True), (rest, False)):
                if some := [piece for piece, is_of in zip(pieces, is_done, strict=True) if is_of is which]:
                    part[table] = asked | {"Keys": some} if isinstance(asked, dict) else some
        if not done:
            return error("ThrottlingException")
        reply = forward(request._replace(body=request.body | {"RequestItems": done}))
        if reply.status != 200:
            return reply
        name = "UnprocessedKeys" if request.operation == "BatchGetItem" else "UnprocessedItems"
        return reply._replace(raw=json.dumps(json.loads(reply.raw) | {name: rest}).encode())
