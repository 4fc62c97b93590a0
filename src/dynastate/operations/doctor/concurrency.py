"""Checks of several clients at once."""

from __future__ import annotations

from dynastate.dynamodb.probe import Probe, RefusedError, Wire
from dynastate.operations.doctor.checks import FAILED_CONDITION, append, check, expect, text, write_all
from dynastate.storage.limits import WRITES_MAX

#: Repetitions: a race is not lost every time.
TURNS = 5


@check("updates at once", "commits of several executors to one list are all there, in one order")
def _lost_updates(probe: Probe) -> None:
    entries = [b"%03d" % number for number in range(200)]
    for turn in range(TURNS):
        at = f"at once {turn}"
        answers = probe.at_once(lambda number, at=at: append(probe, at, entries[number]), len(entries))
        found = probe.get("snapshot", at) or {}
        there = [bytes(each["B"]) for each in found["versions"]["L"]]
        lost = len(set(entries) - set(there))
        expect(not lost, f"{lost} of {len(entries)} acknowledged updates are lost")
        expect(len(there) == len(entries), f"{len(there) - len(entries)} updates were applied twice")
        expect(all(answer == there[: len(answer)] for answer in answers), "an answer showed another order")


@check("puts at once", "parts that several threads write are all there")
def _lost_puts(probe: Probe) -> None:
    items = [probe.key("delta", f"{number:04d}", "puts") | text(str(number)) for number in range(40 * WRITES_MAX)]
    probe.at_once(lambda number: write_all(probe, items[number * WRITES_MAX :][:WRITES_MAX]), 40)
    there = sum(map(len, probe.pages("delta", "puts")))
    expect(there == len(items), f"{len(items) - there} of {len(items)} acknowledged puts are lost")


@check("conditions at once", "of several that want to be first, one is")
def _one_winner(probe: Probe) -> None:
    names: Wire = {"ConditionExpression": "attribute_not_exists(#h)", "ExpressionAttributeNames": {"#h": "store_shard"}}

    def put(turn: int, number: int) -> bool:
        try:
            probe.put("snapshot", f"winner {turn}", text(str(number)), **names)
        except RefusedError as refused:
            expect(refused.code in (FAILED_CONDITION, "TransactionConflictException"), str(refused))
            return False
        return True

    for turn in range(10):
        winners = sum(probe.at_once(lambda number, turn=turn: put(turn, number), 16))
        expect(winners == 1, f"{winners} of 16 were first")
