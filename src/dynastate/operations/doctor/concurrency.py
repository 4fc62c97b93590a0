"""Checks of several clients at once."""

from __future__ import annotations

from dynastate.dynamodb.probe import Probe, RefusedError, Wire
from dynastate.operations.doctor.checks import FAILED_CONDITION, append, check, expect, text, write_all
from dynastate.runtime import Limits

#: Repetitions: a race is not lost every time.
TURNS = 5


@check("updates at once", "commits of several executors to one list are all there, in one order")
def _lost_updates(probe: Probe) -> None:
    entries = [b"%03d" % number for number in range(200)]
    for turn in range(TURNS):
        sort = f"at once {turn}"
        answers = probe.at_once(lambda number, sort=sort: append(probe, sort, entries[number]), len(entries))
        item = probe.get("snapshot", sort) or {}
        stored_entries = [bytes(each["B"]) for each in item["versions"]["L"]]
        lost_count = len(set(entries) - set(stored_entries))
        expect(not lost_count, f"{lost_count} of {len(entries)} acknowledged updates are lost")
        expect(len(stored_entries) == len(entries), f"{len(stored_entries) - len(entries)} updates were applied twice")
        expect(all(answer == stored_entries[: len(answer)] for answer in answers), "an answer showed another order")


@check("puts at once", "parts that several threads write are all there")
def _lost_puts(probe: Probe) -> None:
    items = [
        probe.key("delta", f"{number:04d}", "puts") | text(str(number)) for number in range(40 * Limits.writes_max)
    ]
    probe.at_once(lambda number: write_all(probe, items[number * Limits.writes_max :][: Limits.writes_max]), 40)
    count = sum(map(len, probe.pages("delta", "puts")))
    expect(count == len(items), f"{len(items) - count} of {len(items)} acknowledged puts are lost")


@check("conditions at once", "of several that want to be first, one is")
def _one_winner(probe: Probe) -> None:
    names: Wire = {"ConditionExpression": "attribute_not_exists(#h)", "ExpressionAttributeNames": {"#h": "store_shard"}}

    def put(turn: int, number: int) -> bool:
        try:
            probe.put("snapshot", f"winner {turn}", text(str(number)), **names)
        except RefusedError as error:
            expect(error.code in (FAILED_CONDITION, "TransactionConflictException"), str(error))
            return False
        return True

    for turn in range(10):
        winners = sum(probe.at_once(lambda number, turn=turn: put(turn, number), 16))
        expect(winners == 1, f"{winners} of 16 were first")
