/*
 * What clean-ups of one lineage delete: snapshots, entries and parts of versions; each may stop for ever anywhere.
 *
 * One action is one request to DynamoDB, or one read of several items. README.md maps actions to functions.
 * A snapshot that is done is whole: snapshots.als is about that.
 */
module clean_up

open util/ordering[Version] as versions

/** The versions, all committed. */
sig Version {}
sig Snapshot { of: one Version }

/** The weaknesses that a check may switch on; two have the names of mutations in tests/simulation/mutations.py. */
abstract sig Weakness {}
one sig DeletesWhatTheOldestVersionNeeds, OpensUnfinishedSnapshots, DeletesPartsFirst, DeletesTheHighestFirst
  extends Weakness {}
one sig Engine { weak: set Weakness }

/** The items of snapshots, by their stage; deleted ones are in none. */
var sig Writing, Done in Snapshot {}
var sig Entered in Snapshot {}
/** Versions that a list names, and versions with parts in the table. */
var sig Listed, Stored in Version {}

/** A clean-up of one process. It deletes what only versions below `lowest` need. */
sig CleanUp { lowest: one Version }
var sig Planned, Listing in CleanUp {}

abstract sig Action {}
one sig Nothing, Enter, Finish, Plan, Mark, Go, RemoveEntry, RemoveParts extends Action {}
one sig Step {
  var action: one Action,
  var snapshot: lone Snapshot,
  var cleanUp: lone CleanUp,
  var version: lone Version
}

fact Init {
  no Writing + Done + Entered and Listed = Version and Stored = Version and no Planned + Listing
  Step.action = Nothing and no Step.snapshot and no Step.cleanUp and no Step.version
}

pred snapshotsStay { Writing' = Writing and Done' = Done and Entered' = Entered }
pred versionsStay { Listed' = Listed and Stored' = Stored }
pred cleanUpsStay { Planned' = Planned and Listing' = Listing }
pred step[act: Action, s: lone Snapshot, c: lone CleanUp, v: lone Version] {
  Step.action' = act and Step.snapshot' = s and Step.cleanUp' = c and Step.version' = v
}

/** The versions up to one. */
fun upTo[v: Version]: set Version { v + versions/prevs[v] }
/** A version can be read: from a snapshot, or from the first version on. */
pred isRead[v: Version] {
  upTo[v] in Listed & Stored or (some s: Done | s.of in upTo[v] and upTo[v] - upTo[s.of] in Listed & Stored)
}

/** engine/snapshots.py: enter, by a process that has the version: one that can be read. */
pred enter[s: Snapshot] {
  s not in Entered and isRead[s.of] and no (Writing + Done) & of.(s.of)
  Writing' = Writing + s and Done' = Done and Entered' = Entered + s
  versionsStay and cleanUpsStay and step[Enter, s, none, none]
}

/** engine/snapshots.py: move, to done. */
pred finish[s: Snapshot] {
  s in Writing
  Writing' = Writing - s and Done' = Done + s and Entered' = Entered
  versionsStay and cleanUpsStay and step[Finish, s, none, none]
}

/** engine/cleanup.py: retention. The lowest version that is retained is the first, or the one after a snapshot. */
pred plan[c: CleanUp] {
  c not in Planned
  c.lowest = versions/first
    or versions/prev[c.lowest] in Done.of
    or (OpensUnfinishedSnapshots in Engine.weak and versions/prev[c.lowest] in Writing.of)
    or DeletesWhatTheOldestVersionNeeds in Engine.weak
  Planned' = Planned + c and Listing' = Listing
  snapshotsStay and versionsStay and step[Plan, none, c, none]
}

/** Retention.retains_snapshot: the parent of the lowest version keeps its snapshot. */
fun retained[c: CleanUp]: set Snapshot { of.(c.lowest + versions/prev[c.lowest] + versions/nexts[c.lowest]) }

/** CleanUp.remove_snapshots, step 1; also snapshots under way, which another run may have left. */
pred mark[c: CleanUp, s: Snapshot] {
  c in Planned - Listing
  s in Writing or s in Done - retained[c]
  Writing' = Writing - s and Done' = Done - s and Entered' = Entered
  versionsStay and cleanUpsStay and step[Mark, s, c, none]
}

/** Maintenance.clean_up: from step 4 to step 6. */
pred go[c: CleanUp] {
  c in Planned - Listing
  Listing' = Listing + c and Planned' = Planned
  snapshotsStay and versionsStay and step[Go, none, c, none]
}

/** CleanUp.remove_versions: the lowest first. */
pred removeEntry[c: CleanUp, v: Version] {
  c in Listing and v in Listed & versions/prevs[c.lowest]
  no Listed & versions/prevs[v] or DeletesTheHighestFirst in Engine.weak
  Listed' = Listed - v and Stored' = Stored
  snapshotsStay and cleanUpsStay and step[RemoveEntry, none, c, v]
}

/** CleanUp.remove_parts, and find_orphans: the parts of versions that no list names. */
pred removeParts[c: CleanUp, v: Version] {
  c in Listing and v in Stored & versions/prevs[c.lowest]
  v not in Listed or DeletesPartsFirst in Engine.weak
  Stored' = Stored - v and Listed' = Listed
  snapshotsStay and cleanUpsStay and step[RemoveParts, none, c, v]
}

pred nothing { snapshotsStay and versionsStay and cleanUpsStay and step[Nothing, none, none, none] }

fact Trace {
  always (
    nothing
    or (some s: Snapshot | enter[s] or finish[s])
    or (some c: CleanUp | plan[c] or go[c]
      or (some s: Snapshot | mark[c, s])
      or (some v: Version | removeEntry[c, v] or removeParts[c, v]))
  )
}

// What docs/guarantees.md promises.

/** Clean-up deletes nothing that a retained version needs. */
pred readable { all v: Version | (no c: Planned | v in versions/prevs[c.lowest]) implies isRead[v] }
/** A reader never finds a reference without its items. */
pred referencesFirst { Listed in Stored }
/** What is listed has no gap: verify takes a missing version between others for a loss. */
pred withoutGaps { all v: Listed | versions/nexts[v] in Listed }

pred sound { no Engine.weak }

Readable: check { sound implies always readable } for 3 but 2 CleanUp, 14 steps
ReferencesFirst: check { sound implies always referencesFirst } for 3 but 2 CleanUp, 14 steps
WithoutGaps: check { sound implies always withoutGaps } for 3 but 2 CleanUp, 14 steps

run deletes_what_the_oldest_version_needs {
  Engine.weak = DeletesWhatTheOldestVersionNeeds and eventually not readable
} for 3 but 1 CleanUp, 12 steps
run opens_unfinished_snapshots {
  Engine.weak = OpensUnfinishedSnapshots and eventually not readable
} for 3 but 1 CleanUp, 12 steps
run deletes_parts_first { Engine.weak = DeletesPartsFirst and eventually not referencesFirst } for 3 but 1 CleanUp, 12 steps
run deletes_the_highest_first {
  Engine.weak = DeletesTheHighestFirst and eventually not withoutGaps
} for 3 but 1 CleanUp, 12 steps

/** The model is not empty: two clean-ups have deleted versions, and a snapshot that the first one needed. */
run reaches_two_clean_ups {
  sound and eventually (some s: Entered - Writing - Done, disj c, d: Listing |
    s.of not in Stored and some Done and c.lowest != d.lowest)
} for 3 but 2 CleanUp, 16 steps
