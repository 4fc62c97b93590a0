"""Retries: jittered exponential back-off that starts again at progress, until a deadline. botocore's own are off."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import botocore.exceptions as boto_errors
from botocore.parsers import ResponseParserError

from dynastate import runtime
from dynastate.dynamodb.client import Client
from dynastate.dynamodb.failures import (
    CREDENTIALS,
    Fate,
    ForeignAnswerError,
    cause_of,
    code_of,
    fate_of,
    is_answer,
    is_foreign,
    lacks_credentials,
    status_of,
    throttling_reasons,
)
from dynastate.dynamodb.rates import WriteRate
from dynastate.dynamodb.translation import translate
from dynastate.errors import ConfigurationError, DynastateError, UnavailableError, UnknownOutcomeError
from dynastate.format.keys import Role
from dynastate.redaction import as_cause, get_logger
from dynastate.settings import PREFIX
from dynastate.storage.meter import Meter

log = get_logger("dynastate.tables")

#: Until DynamoDB has answered once, or is known to (`expect_answers`), a wrong endpoint is likelier than an outage.
FIRST_CONTACT_DEADLINE_S: Final = 6.0
BACK_OFF_FIRST_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0
#: From here on the back-off is at its maximum.
_DOUBLINGS_MAX: Final = 7
#: The log warns of retries once per table in this time.
WARN_EVERY_S: Final = 10.0

#: Statuses of a proxy that has too much to do, or whose DynamoDB is out of reach. At first contact, other statuses
#: without an error of DynamoDB are another server's.
_OUTAGES: Final = {"408", "429", "500", "502", "503", "504"}

_FAILURES: Final = (
    boto_errors.ClientError,
    boto_errors.BotoCoreError,
    ResponseParserError,
    ForeignAnswerError,
    RuntimeError,
)

Result = TypeVar("Result")


@dataclass(eq=False)
class RetryPolicy:
    """The deadline and the pauses of retries, for all requests of a client. Safe for threads.

    Tests give their own `clock`, `sleep` and `randomness`.
    """

    _deadline_s: float
    clock: Callable[[], float] = runtime.monotonic
    sleep: Callable[[float], None] = runtime.sleep
    randomness: random.Random = field(default_factory=random.Random)
    has_answered: bool = field(init=False, default=False)
    answered_roles: set[Role] = field(init=False, default_factory=set)
    """Tables that have answered."""
    _warned: dict[Role, float] = field(init=False, default_factory=dict)

    @property
    def deadline_s(self) -> float:
        """Seconds without progress after which a request fails: few until DynamoDB has answered once."""
        return self._deadline_s if self.has_answered else min(self._deadline_s, FIRST_CONTACT_DEADLINE_S)

    def pause(self, failures: int, left_s: float) -> None:
        """Sleep before the next try, at random up to a bound that doubles with each failure, not past the deadline."""
        bound = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2 ** min(failures, _DOUBLINGS_MAX))
        self.sleep(min(self.randomness.uniform(0, bound), left_s))

    def may_warn(self, role: Role, time_s: float) -> bool:
        """Whether the log may warn of this table again."""
        due = time_s >= self._warned.get(role, -WARN_EVERY_S) + WARN_EVERY_S
        if due:
            self._warned[role] = time_s
        return due


@dataclass(eq=False)
class Retry:
    """The tries of one verb, with back-off and deadline by the policy.

    Without progress it fails at the deadline. With the `rate` of a table, every write to this table is progress, and
    the rest of a request waits for the rate.

    For a request that `commits`: `unknown` is set while a request that may have been applied has no answer. `_doubt` is
    set for good by the first such request; then every failure is an UnknownOutcomeError.
    """

    _policy: RetryPolicy
    _client: Client
    _operation: str
    _meter: Meter
    commits: bool
    rate: WriteRate | None
    unknown: bool = False
    _failures: int = 0
    _doubt: bool = False

    def __post_init__(self) -> None:
        self._since = self._policy.clock()

    def attempt(self, role: Role, once: Callable[[], Result]) -> Result | None:
        """Send one request. Returns None if it failed and the pause is over, so that it can be sent again."""
        self._meter.requests += 1
        try:
            answer = once()
        except _FAILURES as error:
            if isinstance(error, RuntimeError) and not lacks_credentials(error):
                raise
            fate = fate_of(error)
            self._policy.has_answered |= is_answer(error)
            is_elsewhere = isinstance(error, ForeignAnswerError) or (
                is_foreign(error) and code_of(error) not in _OUTAGES
            )
            if self.commits and fate is Fate.UNKNOWN:
                self.unknown = self._doubt = True
            # Where nothing is in doubt, a proxy that refuses is not asked again and again.
            is_refused = is_elsewhere and status_of(error) in range(300, 500) and not self.commits
            if fate is Fate.REFUSED or is_refused or (is_elsewhere and not self._policy.has_answered):
                raise self.failure(self._translated(error, role)) from _shown(error)
            self._meter.throttles += fate is Fate.THROTTLED
            self._wait(error, role)
            return None
        except ConfigurationError as refused:  # credentials that cannot be sent
            raise self.failure(refused) from None
        except OSError as error:  # botocore passes on the errors of files and programs with credentials
            self._doubt |= self.commits
            message = f"AWS credentials cannot be read, or the request cannot be made: {error}"
            facts = {"operation": self._operation, "table": self._table(role)}
            raise self.failure(ConfigurationError(message, **facts)) from as_cause(error)
        self._policy.has_answered = True
        self._policy.answered_roles.add(role)
        return answer

    def progressed(self) -> None:
        """Start back-off and deadline again."""
        self._failures = 0
        self._since = self._policy.clock()

    def answered_in_part(self, role: Role, *, progress: bool) -> None:
        """Wait before the rest of a request that was done in part: DynamoDB throttles batches in this way."""
        self._meter.throttles += 1
        if progress:
            self.progressed()
        self._wait(None, role, may_pause=self.rate is None or not progress)

    def _wait(self, error: Exception | None, role: Role, *, may_pause: bool = True) -> None:
        time_s, deadline_s = self._policy.clock(), self._policy.deadline_s
        waited = time_s - (self._since if self.rate is None else max(self._since, self.rate.took_at))
        if self._policy.may_warn(role, time_s):
            self._warn(error, role)
        if waited >= deadline_s:
            raise self.failure(self._gave_up(error, role, waited)) from _shown(error)
        self._meter.retries += 1
        if may_pause:
            self._policy.pause(self._failures, deadline_s - waited)  # the last try is at the deadline, not before
            self._failures += 1

    def _warn(self, error: Exception | None, role: Role) -> None:
        if error is None or fate_of(error) is Fate.THROTTLED:
            reason = f"throttles reasons={throttling_reasons(error)}"
        elif lacks_credentials(error):
            reason = f"cannot be asked: {self._translated(error, role).args[0]}"
        else:
            reason = f"gives no proper answer: {cause_of(error)}"
        log.warning("DynamoDB %s; retried operation=%s table=%s", reason, self._operation, self._table(role))

    def _table(self, role: Role) -> str:
        return self._client.names[role]

    def _translated(self, error: Exception, role: Role) -> Exception:
        return translate(error, self._operation, role, self._client, was_there=role in self._policy.answered_roles)

    def failure(self, error: Exception) -> Exception:
        """The error to raise: an UnknownOutcomeError, if a commit that was sent has no answer."""
        if self._doubt:
            return UnknownOutcomeError(f"a commit was sent and may have happened; retry the task: {error}")
        return error

    def _gave_up(self, error: Exception | None, role: Role, waited: float) -> DynastateError:
        facts = {
            "operation": self._operation,
            "table": self._table(role),
            "tries": self._failures + 1,
            "seconds": round(waited, 1),
        }
        if error is None or fate_of(error) is Fate.THROTTLED:
            return UnavailableError(
                f"DynamoDB throttled this until the deadline; raise the table's capacity, or {PREFIX}requestDeadlineS",
                **facts,
                reasons=throttling_reasons(error),
            )
        if lacks_credentials(error):
            kind = UnavailableError if self._policy.has_answered else ConfigurationError
            return kind(str(self._translated(error, role).args[0]), **facts)
        if not self._policy.has_answered and is_foreign(error):
            return ConfigurationError(self._client.no_dynamodb, **facts, status=code_of(error))
        if not self._policy.has_answered:
            return ConfigurationError(
                f"DynamoDB cannot be reached at {self._client.place}; check {PREFIX}endpoint (http or https?) and "
                f"{PREFIX}region, and the network: {error}",
                **facts,
            )
        return UnavailableError(f"DynamoDB gave no proper answer until the deadline: {cause_of(error)}", **facts)


def _shown(error: Exception | None) -> BaseException | None:
    """The error for a trace, or None if it may contain a signed text or a secret."""
    return None if code_of(error) in CREDENTIALS else as_cause(error)
