"""The network between a process and DynamoDB: delays, losses, throttles, partial batches, and deaths of processes.

A request is a list of pieces: an operation on one item is one piece, a batch has one for each item, as in DynamoDB.
Each piece arrives at a time of its own, also when its sender no longer waits for the answer, or is dead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from tests.simulation import reach
from tests.simulation.dynamodb import DynamoDB, Wire
from tests.simulation.s3 import S3, CutBody
from tests.simulation.scheduler import Process, Scheduler, Task
from tests.support.clients import client_error, lost_answer

#: As in `tables.make_client`.
READ_TIMEOUT_S: Final = 10.0
USUAL_S: Final = 0.01
#: A signature is valid for five minutes; a later request is refused.
LATEST_S: Final = 300.0


@dataclass(frozen=True)
class FaultRates:
    """The probability of each fault at one request, and how long delays may be, in seconds."""

    throttle: float = 0.0
    part: float = 0.0
    """A part of a batch is done, and the rest is unprocessed."""
    error: float = 0.0
    """Status 500; nothing, some or all of it was done."""
    cut: float = 0.0
    """The connection ends without an answer; nothing, some or all of it was or will be done."""
    not_sent: float = 0.0
    slow: float = 0.0
    """The request or the answer is slow: others may overtake it, and its sender may have given up."""
    slow_s: float = 1.0
    nap: float = 0.0
    """The sending task is suspended before it sends, and does not notice."""
    nap_s: float = 1.0
    pause: float = 0.0
    """The whole process is suspended."""
    pause_s: float = 10.0
    die: float = 0.0
    """The process dies, before or after the request arrived."""
    page: float = 0.0
    """A page of a Query ends after some items."""

    def __str__(self) -> str:
        return " ".join(f"{one.name}={getattr(self, one.name):.3g}" for one in fields(self) if getattr(self, one.name))


NO_FAULTS: Final = FaultRates()


def random_faults(chance: random.Random) -> FaultRates:
    """The faults of a schedule: about half of the kinds, each rare or frequent."""
    rates = NO_FAULTS
    most_of = {"throttle": 0.3, "part": 0.5, "error": 0.2, "cut": 0.2, "not_sent": 0.1}
    most_of |= {"slow": 0.2, "nap": 0.1, "pause": 0.03, "die": 0.05, "page": 0.7}
    for kind, most in most_of.items():
        if chance.random() < 0.5:
            rates = replace(rates, **{kind: most * chance.random() ** 2})
    lengths = {"slow_s": (0.3, 3.0, 30.0, 200.0), "nap_s": (0.3, 3.0, 30.0), "pause_s": (1.0, 10.0, 100.0)}
    return replace(rates, **{name: chance.choice(seconds) for name, seconds in lengths.items()})


@dataclass
class Client:
    """A boto3 client of one process, of DynamoDB or S3; `on_request` is called ahead of each request."""

    scheduler: Scheduler
    chance: random.Random
    service: DynamoDB | S3
    process: Process
    faults: Callable[[], FaultRates]
    on_request: Callable[[str, dict[str, Any]], None]
    meta = SimpleNamespace(region_name="simulation")

    def __getattr__(self, operation: str) -> Callable[..., Wire]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return partial(self._send, operation)

    def _send(self, operation: str, **request: Any) -> Wire:
        self.on_request(operation, request)
        return _Request(self).answer(operation, request)

    def close(self) -> None:
        """Do nothing; a boto3 client has it."""


class _Request:
    """One request under way."""

    def __init__(self, client: Client) -> None:
        self._scheduler, self._chance, self._service = client.scheduler, client.chance, client.service
        self._process, self._faults = client.process, client.faults()
        self._refused: ClientError | None = None
        self._answers: list[Wire] = []
        self._to_come = 0
        self._sent: tuple[str, str, dict[str, Any]] = "", "", {}
        self._is_answered = False
        self._is_given_up = False
        #: Whether the request arrives although its process has died.
        self._outlives = self._chance.random() < 0.5

    def answer(self, operation: str, request: dict[str, Any]) -> Wire:
        task = self._scheduler.current
        assert task is not None, "a request from outside of any task"
        self._sent = task.doing, operation, request
        self._set_out(operation, request)
        refused = self._refusal()
        if refused is not None:
            return self._fail(refused, self._delay())
        pieces, undone = self._pieces(operation, request)
        lost = self._happens(self._faults.cut)
        failed = not lost and self._happens(self._faults.error)
        if lost or failed:
            pieces = pieces[: self._chance.randint(0, len(pieces))]
        self._send(operation, pieces, task)
        if lost:
            self._strike(reach.LOST if pieces else reach.NOT_SENT)
            return self._fail(lost_answer(), self._delay())
        if failed:
            self._strike(reach.ERROR)
            return self._fail(client_error("InternalServerError", 500), self._delay())
        return self._wait(operation, undone)

    def _set_out(self, operation: str, request: dict[str, Any]) -> None:
        """Let the task or the process be suspended, or die."""
        scheduler, faults = self._scheduler, self._faults
        # The order matters most for commits and the stages of snapshots.
        if self._happens(faults.nap * (5 if operation in ("update_item", "put_item") else 1)):
            self._strike(reach.STOP)
            scheduler.sleep(self._chance.uniform(0, faults.nap_s))
        scheduler.note("%s", Described(operation, request))
        if self._happens(faults.die):
            self._strike(reach.KILL)
            if self._chance.random() < 0.5:
                scheduler.kill(self._process)
            scheduler.after(self._chance.uniform(0, 2 * USUAL_S), self._die)
        if self._happens(faults.pause):
            self._strike(reach.STOP)
            self._process.paused_until = scheduler.now + self._chance.uniform(0, faults.pause_s)
            scheduler.note("%s is suspended until %.1f", self._process.name, self._process.paused_until)

    def _refusal(self) -> Exception | None:
        """The error where nothing of it is done."""
        refused: Exception | None = None
        code = "SlowDown"
        if self._happens(self._faults.not_sent):
            self._strike(reach.NOT_SENT)
            refused = EndpointConnectionError(endpoint_url="http://simulation")
        elif self._happens(self._faults.throttle):
            reasons = [{"reason": "TableWriteProvisionedThroughputExceeded", "resource": "a table"}]
            self._strike(reach.SLOW_DOWN if isinstance(self._service, S3) else reach.THROTTLE)
            if not isinstance(self._service, S3):
                code = self._chance.choice(("ProvisionedThroughputExceededException", "ThrottlingException"))
            refused = client_error(code, ThrottlingReasons=reasons)
        return refused

    def _send(self, operation: str, pieces: list[dict[str, Any]], task: Task) -> None:
        self._to_come = len(pieces)
        arrival = self._delay()
        for piece in pieces:
            at = arrival if len(pieces) == 1 or self._chance.random() < 0.7 else arrival + self._delay()
            if at < LATEST_S:
                self._scheduler.after(at, partial(self._arrive, operation, piece, task))

    def _wait(self, operation: str, undone: list[dict[str, Any]]) -> Wire:
        scheduler = self._scheduler
        until = scheduler.now + READ_TIMEOUT_S
        while not self._is_answered:
            if scheduler.now >= until:
                return self._fail(ReadTimeoutError(endpoint_url="http://simulation"), 0)
            scheduler.park(operation, until - scheduler.now)
        if self._refused is not None:
            scheduler.note("%s", self._refused)
            raise self._refused
        answer = _merge(operation, self._answers, undone)
        if operation == "get_object" and self._happens(self._faults.part):
            self._strike(reach.CUT_BODY)
            return {"Body": CutBody()}
        return answer

    def _happens(self, likely: float) -> bool:
        return likely > 0 and self._chance.random() < likely

    def _delay(self) -> float:
        if self._happens(self._faults.slow):
            return self._chance.uniform(0, self._faults.slow_s)
        return self._chance.uniform(0, USUAL_S)

    def _fail(self, error: Exception, seconds: float) -> Wire:
        self._is_given_up = True
        self._scheduler.sleep(min(seconds, READ_TIMEOUT_S))
        self._scheduler.note("%s", type(error).__name__ if str(error).startswith("Connection") else error)
        raise error

    def _die(self) -> None:
        if not self._process.is_dead:
            self._scheduler.kill(self._process)

    def _arrive(self, operation: str, piece: dict[str, Any], task: Task) -> None:
        if self._service.is_cut or (self._process.is_dead and not self._outlives):
            if self._service.is_cut and isinstance(self._service, S3):
                self._strike(reach.MUTE)
            return
        if self._is_given_up or self._process.is_dead:
            if reach.is_write(operation):
                self._strike(reach.LATE)
            self._scheduler.note("late from %s: %s", self._process.name, Described(operation, piece))
        try:
            self._answers.append(getattr(self._service, operation)(**piece))
        except ClientError as refused:
            self._refused = refused
            if "Item size" in str(refused):
                self._strike(reach.FULL)
        self._to_come -= 1
        if self._to_come == 0 and not self._is_given_up:
            self._scheduler.after(self._delay(), lambda: self._come_back(task))

    def _come_back(self, task: Task) -> None:
        if self._service.is_cut:
            return
        self._is_answered = True
        if not self._is_given_up:
            self._scheduler.unpark(task)

    def _pieces(self, operation: str, request: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The pieces that are done, and those that stay unprocessed."""
        if operation == "query" and self._happens(self._faults.page):
            self._strike(reach.PAGE)
            return [{**request, "Limit": self._chance.randint(1, 6)}], []
        if not operation.startswith("batch_"):
            return [request], []
        pieces = list(_single(operation, request))
        self._chance.shuffle(pieces)
        # At least one is done; otherwise DynamoDB throttles the whole request.
        count = self._chance.randint(1, len(pieces)) if self._happens(self._faults.part) else len(pieces)
        if count < len(pieces):
            self._strike(reach.PARTIAL)
        return pieces[:count], pieces[count:]

    def _strike(self, fault: str) -> None:
        """Count a fault for the step of this request."""
        self._scheduler.struck[reach.Cell(reach.step_of(*self._sent), fault)] += 1


def _single(operation: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, batch in request["RequestItems"].items():
        if operation == "batch_write_item":
            yield from ({"RequestItems": {name: [write]}} for write in batch)
        else:
            yield from ({"RequestItems": {name: {**batch, "Keys": [key]}}} for key in batch["Keys"])


def _merge(operation: str, answers: list[Wire], undone: list[dict[str, Any]]) -> Wire:
    """The answer of a request, from those to its pieces."""
    if operation == "batch_write_item":
        return {"UnprocessedItems": _by_table(piece["RequestItems"] for piece in undone)}
    if operation == "batch_get_item":
        keys = ({name: table["Keys"] for name, table in piece["RequestItems"].items()} for piece in undone)
        unprocessed = {name: {"Keys": group} for name, group in _by_table(keys).items()}
        return {"Responses": _by_table(answer["Responses"] for answer in answers), "UnprocessedKeys": unprocessed}
    return answers[0]


def _by_table(pieces: Iterable[Mapping[str, list[Wire]]]) -> dict[str, list[Wire]]:
    together: dict[str, list[Wire]] = {}
    for name, items in (each for piece in pieces for each in piece.items()):
        together.setdefault(name, []).extend(items)
    return together


class Described(NamedTuple):
    """A request in the journal, formatted only if the journal is printed."""

    operation: str
    request: dict[str, Any]

    def __str__(self) -> str:
        request = self.request
        if "RequestItems" in request:
            tables = request["RequestItems"].values()
            entries = [each for table in tables for each in (table if isinstance(table, list) else table["Keys"])]
            keys = [
                ("-" if "DeleteRequest" in each else "")
                + _short(each.get("PutRequest", {}).get("Item") or each.get("DeleteRequest", {}).get("Key") or each)
                for each in entries
            ]
            return f"{self.operation} {' '.join(keys)}"
        if self.operation == "query":
            values = request["ExpressionAttributeValues"]
            start = request.get("ExclusiveStartKey")
            return f"query {values[':low']['S'][:40]} … {values[':high']['S'][:40]}" + (
                f" after {_short(start)}" if start else ""
            )
        if "Bucket" in request:
            return f"{self.operation} {' '.join(_names(request))}"
        item = request.get("Item") or request.get("Key") or {}
        stage = item.get("stage", {}).get("S", "")
        return f"{self.operation} {_short(item)} {stage}".rstrip()


def _names(request: Wire) -> Iterator[str]:
    """The names of the objects of a request, without leading zeros and ends of ids."""
    listed = [each["Key"] for each in request.get("Delete", {}).get("Objects", ())]
    for key in listed or [request.get("Key") or request.get("Prefix", "")]:
        kind, *rest = key.rpartition("#")[2].split("/")
        yield "/".join([kind, *(each.lstrip("0")[:8] or "0" for each in rest)])


def _short(item: Wire) -> str:
    """A key without leading zeros and ends of ids."""
    sort: str = (item.get("part") or item["entry"])["S"]
    return "/".join(each.lstrip("0")[:8] or "0" for each in sort.split("/"))
