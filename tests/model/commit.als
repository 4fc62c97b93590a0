/*
 * Commits of one store: attempts, lost answers, killed tasks, several runs, refused runs, and lists that are shortened.
 *
 * One action is one request to DynamoDB, or one step of Spark's driver. README.md maps actions to functions.
 */
module commit

open util/ordering[Version] as versions

sig Version {}

/** The location of a query's checkpoint. */
sig Location {}

sig Run { location: one Location }

/** What one task makes of a version, from the attempt of the version before (format/keys.py: VersionId). */
sig Attempt {
  version: one Version,
  parent: lone Attempt,
  by: one Run
}

fact Attempts {
  all a: Attempt | a.version = versions/first implies no a.parent else a.parent.version = versions/prev[a.version]
}

/** The weaknesses that a check may switch on; most have the names of mutations in tests/simulation/mutations.py. */
abstract sig Weakness {}
one sig CommitsBeforePartsAreDurable, AbortsAttemptsOfUnknownOutcome, CommitsForKilledTasks,
  OpensTheLastAppendedAttempt, CommitsIntoListsThatRefuseTheRun, AdoptsWhileARunEnters, ShortensChosenAttempts extends Weakness {}
one sig Engine { weak: set Weakness }

/** The parts that DynamoDB has. */
var sig Durable in Attempt {}
/** The entries of the version list, in their order, and the runs that it refuses. */
var sig Listed in Attempt {}
one sig List { var order: Attempt -> Attempt, var refused: set Run }
/** Appends that were sent, and that DynamoDB may apply at any time, also when nobody waits any more. */
var sig UnderWay in Attempt {}
/** Tasks: running from the beginning to the end; `Succeeded` have told Spark so. */
var sig Begun, Ended, Succeeded in Attempt {}
/** Runs in the meta item, in the order of their epochs, and the location that may write. */
var sig Entered in Run {}
one sig Meta { var epochs: Run -> Run, var location: lone Location }
/** The location of an adoption under way, and the runs that it has seen. */
one sig Adoption { var to: lone Location, var seen: set Run }
/** Spark's log: the attempt of each version that a driver has committed. A driver writes a version once. */
one sig Log { var chosen: Version -> lone Attempt }
/** What happened last, for the replay. */
abstract sig Action {}
one sig Begin, Write, Send, Apply, Answer, Kill, Abort, Choose, Refuse, Adopt, Shorten, Nothing extends Action {}
one sig Step { var action: one Action, var attempt: lone Attempt, var location: lone Location }

fact Init {
  no Durable + Listed + UnderWay + Begun + Ended + Succeeded
  no Entered
  no List.order and no List.refused and no Meta.epochs and no Meta.location and no Adoption.to and no Adoption.seen
  no Log.chosen
  Step.action = Nothing and no Step.attempt and no Step.location
}

/** A newer run: r -> s means that s entered later. */
pred newer[s: Run, r: Run] { r -> s in Meta.epochs }

/** format/graph.py: VersionGraph.find, by number. */
fun found[v: Version]: lone Attempt {
  { a: Listed & version.v |
      (all b: Listed & version.v | OpensTheLastAppendedAttempt not in Engine.weak implies not newer[b.by, a.by])
      and (all b: (Listed & version.v) - a |
        (a.by = b.by or OpensTheLastAppendedAttempt in Engine.weak) implies b -> a in List.order) }
}

pred tasksStay { Begun' = Begun and Ended' = Ended and Succeeded' = Succeeded }
pred listStays { Listed' = Listed and List.order' = List.order }
pred metaStays { Entered' = Entered and Meta.epochs' = Meta.epochs and Meta.location' = Meta.location }
pred refusedStay { List.refused' = List.refused and Adoption.to' = Adoption.to and Adoption.seen' = Adoption.seen }
pred runsStay { metaStays and refusedStay }
pred logStays { Log.chosen' = Log.chosen }
pred step[act: Action, a: lone Attempt] { Step.action' = act and Step.attempt' = a and no Step.location' }

/** engine.open, then engine/writer: a task begins, from the attempt that the driver's log names. */
pred begin[a: Attempt] {
  a not in Begun
  no Log.chosen[a.version]
  a.parent = Log.chosen[versions/prev[a.version]]
  Begun' = Begun + a and Ended' = Ended and Succeeded' = Succeeded
  Durable' = Durable and UnderWay' = UnderWay
  listStays and runsStay and logStays and step[Begin, a]
}

/**
 * engine/sessions.py: Sessions.enter, then engine/writer.py: the run enters with its first write, if it is from the
 * location that may write; parts are durable.
 */
pred write[a: Attempt] {
  a in Begun - Ended - Durable
  Durable' = Durable + a
  a.by in Entered implies metaStays else {
    Meta.location in a.by.location
    Entered' = Entered + a.by and Meta.epochs' = Meta.epochs + Entered -> a.by and Meta.location' = a.by.location
  }
  UnderWay' = UnderWay
  tasksStay and listStays and refusedStay and logStays and step[Write, a]
}

/** engine/updates.py: append_version is sent, by engine/commit.py: WriteAttempt.commit, step 3. */
pred send[a: Attempt] {
  a in Begun - UnderWay - Listed - Succeeded
  a in Ended implies CommitsForKilledTasks in Engine.weak
  a.by in Entered
  a in Durable or CommitsBeforePartsAreDurable in Engine.weak
  UnderWay' = UnderWay + a
  Durable' = Durable
  tasksStay and listStays and runsStay and logStays and step[Send, a]
}

/** DynamoDB appends the entry, unless the list refuses the run. */
pred apply[a: Attempt] {
  a in UnderWay
  UnderWay' = UnderWay - a
  a.by in List.refused and CommitsIntoListsThatRefuseTheRun not in Engine.weak implies listStays else {
    Listed' = Listed + a
    List.order' = List.order + (Listed - a) -> a
  }
  Durable' = Durable
  tasksStay and runsStay and logStays and step[Apply, a]
}

/** The answer arrives, or the list shows that the append happened. */
pred answer[a: Attempt] {
  a in Listed - Ended
  Succeeded' = Succeeded + a and Ended' = Ended + a and Begun' = Begun
  Durable' = Durable and UnderWay' = UnderWay
  listStays and runsStay and logStays and step[Answer, a]
}

/** The task fails with an unknown outcome (UnknownOutcomeError), or is killed: nothing is sent for it any more. */
pred kill[a: Attempt] {
  a in Begun - Ended
  Ended' = Ended + a and Begun' = Begun and Succeeded' = Succeeded
  Durable' = Durable and UnderWay' = UnderWay
  listStays and runsStay and logStays and step[Kill, a]
}

/** WriteAttempt.abort: the parts of an attempt that surely is not listed are deleted. */
pred abort[a: Attempt] {
  a in Durable & Ended - Succeeded
  no a & (UnderWay + Listed) or AbortsAttemptsOfUnknownOutcome in Engine.weak
  Durable' = Durable - a
  UnderWay' = UnderWay
  tasksStay and listStays and runsStay and logStays and step[Abort, a]
}

/** Spark's driver commits a batch: checkpoint format v2 names the attempt of a task that succeeded. */
pred choose[a: Attempt] {
  a in Succeeded
  // The checkpoint at another location is another query's.
  a.by.location = Meta.location
  no Log.chosen[a.version]
  a.parent = Log.chosen[versions/prev[a.version]]
  // Not promised (docs/guarantees.md): a driver that still commits when two later runs have entered.
  lone r: Entered | newer[r, a.by]
  Log.chosen' = Log.chosen + a.version -> a
  Durable' = Durable and UnderWay' = UnderWay
  tasksStay and listStays and runsStay and step[Choose, a]
}

/** operations/lifecycle/adopt.py: _adopt, step 1: the lists refuse the runs from other locations that have entered. */
pred refuse[l: Location] {
  some Entered and l != Meta.location
  Adoption.to' = l and Adoption.seen' = Entered
  List.refused' = List.refused + { r: Entered | r.location != l }
  Durable' = Durable and UnderWay' = UnderWay
  tasksStay and listStays and metaStays and logStays
  Step.action' = Refuse and no Step.attempt' and Step.location' = l
}

/** Step 2, by engine/updates.py: advance_epoch, on the condition that no other run has entered. */
pred adopt[l: Location] {
  l = Adoption.to
  Entered = Adoption.seen or AdoptsWhileARunEnters in Engine.weak
  no Adoption.to' and no Adoption.seen' and List.refused' = List.refused
  Meta.location' = l and Entered' = Entered and Meta.epochs' = Meta.epochs
  Durable' = Durable and UnderWay' = UnderWay
  tasksStay and listStays and logStays
  Step.action' = Adopt and no Step.attempt' and Step.location' = l
}

/** engine/lists.py: unneeded, with RUNS_KEPT = 2, of a list that is long and not full; `e` is of the newest run. */
pred unneeded[a: Attempt, e: Attempt] {
  a in Listed and a != e
  no e.by.(Meta.epochs)
  a.by.location = Meta.location
  // a base of another attempt, or of the entry
  no parent.a & Listed
  a not in e.^parent
  // the commit's own run at a lower version, or a run before the last two that have entries in the list
  (a.by = e.by and a.version in versions/prevs[e.version]) or some r: Listed.by - e.by | newer[r, a.by]
  // the last one above
  a.version in versions/nexts[e.version] implies some b: (Listed & version.(a.version)) - a | a -> b in List.order
}

pred shorten[a: Attempt, e: Attempt] {
  e in Listed
  a in Listed
  unneeded[a, e] or (ShortensChosenAttempts in Engine.weak and a != e)
  Listed' = Listed - a
  List.order' = List.order - a -> Attempt - Attempt -> a
  Durable' = Durable and UnderWay' = UnderWay
  tasksStay and runsStay and logStays and step[Shorten, a]
}

pred nothing {
  Durable' = Durable and UnderWay' = UnderWay
  tasksStay and listStays and runsStay and logStays and step[Nothing, none]
}

fact Trace {
  always (
    nothing
    or (some a: Attempt | begin[a] or write[a] or send[a] or apply[a] or answer[a] or kill[a] or abort[a] or choose[a])
    or (some l: Location | refuse[l] or adopt[l])
    or (some a, e: Attempt | shorten[a, e])
  )
}

// What docs/guarantees.md promises.

/** A version exists whole or not at all. */
pred whole { all a: Listed | a in Durable and a.parent in Listed }
/** A commit that returned is durable, and the attempt that the driver's log names can be opened. */
pred kept { all a: Log.chosen[Version] | a in Listed and a in Durable }
/** A task that Spark has killed does not send a commit. */
pred awaited { all a: Attempt | a in UnderWay' - UnderWay implies a not in Ended }
/** By number, an attempt of an older run never wins. */
pred newestWins { all v: Version, a: Listed & version.v | some found[v] and not newer[a.by, found[v].by] }
/** After an adoption no run from the old location commits. */
pred adopted { all a: Listed' - Listed | a.by.location = Meta.location }

pred sound { no Engine.weak }

Whole: check { sound implies always whole } for 2 but 1 Location, 12 steps
Kept: check { sound implies always kept } for 2 but 3 Attempt, 1 Location, 12 steps
Awaited: check { sound implies always awaited } for 3 but 2 Location, 14 steps
NewestWins: check { sound implies always newestWins } for 2 but 1 Version, 1 Location, 10 steps
Adopted: check { sound implies always adopted } for 2 but 1 Version, 12 steps

run commits_before_parts_are_durable {
  Engine.weak = CommitsBeforePartsAreDurable and eventually not whole
} for 3 but 12 steps
run aborts_attempts_of_unknown_outcome {
  Engine.weak = AbortsAttemptsOfUnknownOutcome and eventually not whole
} for 3 but 12 steps
run commits_for_killed_tasks { Engine.weak = CommitsForKilledTasks and eventually not awaited } for 3 but 12 steps
run opens_the_last_appended_attempt {
  Engine.weak = OpensTheLastAppendedAttempt and eventually not newestWins
} for 3 but 12 steps
run commits_into_lists_that_refuse_the_run {
  Engine.weak = CommitsIntoListsThatRefuseTheRun and eventually not adopted
} for 3 but 12 steps
run adopts_while_a_run_enters {
  Engine.weak = AdoptsWhileARunEnters and eventually not adopted
} for 3 but 2 Location, 14 steps
run shortens_chosen_attempts { Engine.weak = ShortensChosenAttempts and eventually not kept } for 3 but 14 steps

/** The model is not empty: all versions are chosen. */
run reaches_all_versions {
  sound and eventually some Log.chosen[versions/last]
} for 2 but exactly 2 Version, 1 Location, 14 steps
