"""One history: runs of a query on real sidecars, which are killed and stopped, over a network with faults."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

from dynastate.dynamodb.boto_tables import open_tables
from dynastate.dynamodb.embedded import credentials
from dynastate.errors import DynastateError
from dynastate.format.keys import NO_ATTEMPT
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.judged.calls import OK, OUTCOMES, Call, named
from tests.judged.clients import Client, Host
from tests.judged.commands import Commands
from tests.judged.driving import USUAL, drive_all
from tests.judged.history import OPERATOR, History, Size
from tests.judged.launcher import mutated
from tests.judged.network import ALL, NONE, UPDATES, Network
from tests.judged.runs import Run
from tests.support.dynoxide import Dynoxide
from tests.support.fault_proxy import FaultProxy

HOSTS: Final = 2
#: Enough for all tasks at once: those of batches wait for others.
THREADS: Final = 64
#: Numbers of clients that are there once; tasks have lower ones.
VIEWER, LAST = 10_000, 10_001
#: Deadline of requests in the sidecars, and the length of an outage of the network, which is longer.
REQUEST_DEADLINE_S, OUT_S = 1, 2.0
#: The length of a stop at any moment.
STOPPED_S: Final = 1.0


def _read(history: History, number: int) -> None:
    """Open versions by their numbers, and attempts by their names, until the history is over."""
    chance = history.chance("reader", number)
    while not history.is_over:
        stores = list(history.attempts)
        attempts = list(history.attempts[store]) if (store := chance.choice(stores or [""])) else []
        if attempts:
            version, by = chance.choice(attempts[-10:])
            client = history.client(chance)
            if client is not None:
                with closing(client.talk):
                    client.open(store, version, by if chance.random() < 0.5 else NO_ATTEMPT)
        time.sleep(chance.uniform(0, 0.1))


def _view(history: History, tables: Tables, settings: Settings) -> None:
    """Open the operator with all its partitions, as `open_state` does, and refresh that, until the history is over."""
    chance = history.chance("view")
    state: StateReader | None = None
    while not history.is_over:
        call = Call(VIEWER, "view", OPERATOR, 0, "")
        with history.record.noting(call):
            try:
                if state is None:
                    state = StateReader(tables, settings, OPERATOR)
                else:
                    state.refresh()
                call.version = state.version
                call.shown = {partition.store: named(entry.attempt) for partition, entry in state._current()}
                call.outcome = OK
            except DynastateError as failed:
                call.outcome, call.error = OUTCOMES[failed.kind], str(failed)
        if state is not None and chance.random() < 0.3:
            state.close()
            state = None
        time.sleep(chance.uniform(0, 0.2))
    if state is not None:
        state.close()


def _harm(history: History) -> None:
    """Kill and stop sidecars, and cut off the network, now and then, until the history is over."""
    chance = history.chance("harm")
    while not history.is_over:
        time.sleep(chance.uniform(0.3, 1.2))
        host = chance.choice(history.hosts)
        harm = chance.choice(("kill", "stop", UPDATES, ALL))
        host.network.counts[f"harm {harm}"] += 1
        if harm == "kill":
            host.kill()
        elif harm == "stop":
            host.stop()
            time.sleep(chance.uniform(0, STOPPED_S))
            host.go_on()
        else:
            host.network.outage = harm
            time.sleep(OUT_S)
            host.network.outage = NONE


def _settle(history: History, run: Run) -> None:
    """Make a snapshot of the oldest version that is to be retained of each store, then clean up: nothing harms it."""
    for store in run.query.stores:
        chance = history.chance("settle", store)
        if len(run.chosen) > 1:
            versions = [chosen[store] for chosen in run.chosen[-history.retain :]]
            run.snapshot(store, versions[0], chance)
            run.clean_up(store, versions[-1], chance)


def _read_all(history: History) -> None:
    """Open every version and every attempt on each host."""
    for host in history.hosts:
        talk = host.connect()
        assert talk is not None, "a sidecar does not answer, and nothing harms it"
        client = Client(LAST, history.record, talk)
        with closing(talk):
            for store, attempts in history.attempts.items():
                highest = max((each.version for each in attempts), default=0)
                for version in range(1, highest + 2):
                    client.open(store, version, NO_ATTEMPT)
                for version, by in attempts:
                    client.open(store, version, by)


@contextmanager
def _network(
    seed: int, name: str, settings: Settings, *, may_be_late: bool = True
) -> Iterator[tuple[Network, Settings]]:
    """A network of one process to its services, and the settings to use it."""
    network = Network(random.Random(f"{seed} {name}"), may_be_late=may_be_late)  # noqa: S311  # not for cryptography
    with ExitStack() as stack:
        dynamodb = stack.enter_context(FaultProxy(settings.endpoint, network))
        settings = replace(settings, endpoint=dynamodb.endpoint)
        if settings.objects:
            s3 = stack.enter_context(FaultProxy(settings.objects_endpoint, network))
            settings = replace(settings, objects_endpoint=s3.endpoint)
        yield network, settings


def _with_objects(settings: Settings, seed: int, s3: Settings) -> Settings:
    """Settings with objects for all parts, for every other seed. `s3` are settings of an S3, and have a location."""
    if seed % 2 == 0:
        return settings
    location = f"{s3.objects}/{seed}-{time.time_ns()}"
    return replace(settings, objects=location, objects_endpoint=s3.objects_endpoint, objects_threshold_kb=0)


def play(seed: int, folder: Path, s3: Settings, mutation: str = "", size: Size = USUAL) -> History:
    """Play the history of a seed, on a DynamoDB with its tables in a new folder.

    What threads do at which moment differs from play to play. Large parts of odd seeds are objects.
    """
    with ExitStack() as stack:
        dynamodb = stack.enter_context(Dynoxide(folder))
        dynamodb.create_tables()
        settings = _with_objects(replace(dynamodb.settings, request_deadline_s=REQUEST_DEADLINE_S), seed, s3)
        stack.enter_context(patch.dict(os.environ, credentials()))
        stack.enter_context(mutated(mutation))  # the readers of this process are broken, too
        network, own_settings = stack.enter_context(_network(seed, "here", settings))
        tables = stack.enter_context(closing(open_tables(own_settings)))
        tables.expect_answers()
        # A delete of a drop that came after its retry could take what the next query has written.
        of_commands, command_settings = stack.enter_context(_network(seed, "commands", settings, may_be_late=False))
        to_commands = stack.enter_context(closing(open_tables(command_settings)))
        to_commands.expect_answers()
        networks = [stack.enter_context(_network(seed, f"host {number}", settings)) for number in range(HOSTS)]
        with ThreadPoolExecutor() as starts:
            hosts = list(starts.map(lambda of: Host(of[1], of[0], mutation), networks))
        for host in hosts:
            stack.callback(host.close)
        retain = random.Random(f"{seed} retain").choice((2, 4))  # noqa: S311  # not for cryptography
        history = History(seed, size, retain, hosts, [network, of_commands])
        with ThreadPoolExecutor(THREADS) as pool:
            others = [pool.submit(_read, history, number) for number in range(2)]
            others += [pool.submit(_harm, history), pool.submit(_view, history, tables, own_settings)]
            commands = Commands(history, to_commands, pool)
            try:
                last = drive_all(history, pool, commands)
            finally:
                history.is_over = True
            for other in others:
                other.result()
        for each in history.networks:
            each.heal()
        _settle(history, last)
        with ThreadPoolExecutor() as restarts:  # what they have in memory need not be stored
            list(restarts.map(Host.kill, history.hosts))
        _read_all(history)
    return history
