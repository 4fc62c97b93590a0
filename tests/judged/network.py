"""Faults between sidecars and DynamoDB, as a rule of the fault proxy."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final, final

from tests.support.fault_proxy import CutError, Forward, Reply, Request, error

#: Of 1,000 requests so many meet each fault; the rest pass.
RATES: Final = {"slow": 100, "lost": 40, "not sent": 20, "late": 30, "throttled": 30, "in part": 150}
SLOW_S: Final = 0.2
#: Outages: of nothing, of the answers to updates, of everything.
NONE, UPDATES, ALL = "", "updates", "all"
IN_DOUBT: Final = {"UpdateItem": "lost", "GetItem": "not sent"}
#: So long a request may be under way after its sender has seen the connection end.
LATE_S: Final = 2.0


@final
class Network:
    """Delays requests, loses them or their answers, delivers them late, and throttles; counts what it did.

    During an `outage` no request has an answer; in one of `UPDATES` no update has, although each is applied, and no
    item can be read to find that out. Once it is healed, everything passes.
    """

    def __init__(self, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.outage = NONE
        self._chance = chance
        self._is_healed = False
        self._late: list[threading.Thread] = []

    def __call__(self, request: Request, forward: Forward) -> Reply:
        fault = self._fault(request.operation)
        self.counts[fault] += 1
        if fault == "slow":
            time.sleep(self._chance.uniform(0, SLOW_S))
        elif fault == "lost":
            forward(request)
            raise CutError
        elif fault == "not sent":
            raise CutError
        elif fault == "late":
            self._send_late(request, forward)
            raise CutError
        elif fault == "throttled":
            return error("ThrottlingException")
        elif fault == "in part":
            return self._in_part(request, forward)
        return forward(request)

    def heal(self) -> None:
        """Let everything pass from now on, and wait for what is late."""
        self._is_healed = True
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
        """Do about half of a batch; the rest is unprocessed."""
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
