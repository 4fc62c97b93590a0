/*
 * Snapshots that carry a bucket on, and clean-ups that delete snapshots beside them; each may stop for ever anywhere.
 *
 * One action is one request to DynamoDB, or one read of several items. README.md maps actions to functions.
 * There is one bucket, since no step compares a bucket with another one. Clean-up may delete any snapshot: clean_up.als
 * is about which ones.
 */
module snapshots

/** A snapshot writes the bucket, or carries it on from its base; `holder` is the snapshot that wrote it. */
sig Snapshot { base: lone Snapshot, holder: one Snapshot }

fact Holders { all s: Snapshot | s.holder = s or (some s.base and s.holder = s.base.holder) }

/** The weaknesses that a check may switch on. */
abstract sig Weakness {}
one sig CommitsSnapshotsWithoutCheckingTheirBase, DeletesBesideSnapshotsUnderWay, DeletesBucketsThatWereCarriedOn,
  FinishesSnapshotsThatAreDeleted, SweepsBesideSnapshotsUnderWay extends Weakness {}
one sig Engine { weak: set Weakness }

/** The items of snapshots, by their stage. */
var sig Writing, Done, Deleting in Snapshot {}
/** What writers have done: entered their snapshot, found that its base is there, finished it. */
var sig Entered, Checked, Finished in Snapshot {}
/** The buckets in the table, by who wrote them. */
var sig Bucket in Snapshot {}

/** A clean-up of one process, with what it has read and marked. */
sig CleanUp { var marked, carried, orphans: set Snapshot }
/** Where clean-ups are: all others still mark. */
var sig Removing, Sweeping, Over in CleanUp {}

abstract sig Action {}
one sig Nothing, Enter, Write, Check, Finish, Mark, ReadAgain, RemoveBucket, RemoveItem, FindOrphans, RemoveOrphan
  extends Action {}
one sig Step { var action: one Action, var snapshot: lone Snapshot, var cleanUp: lone CleanUp }

fact Init {
  no Writing + Done + Deleting + Entered + Checked + Finished + Bucket
  no Removing + Sweeping + Over and no CleanUp.marked + CleanUp.carried + CleanUp.orphans
  Step.action = Nothing and no Step.snapshot and no Step.cleanUp
}

pred stagesStay { Writing' = Writing and Done' = Done and Deleting' = Deleting }
pred writersStay { Entered' = Entered and Checked' = Checked and Finished' = Finished }
pred phasesStay { Removing' = Removing and Sweeping' = Sweeping and Over' = Over }
pred readsStay { marked' = marked and carried' = carried and orphans' = orphans }
pred cleanUpsStay { phasesStay and readsStay }
pred step[act: Action, s: lone Snapshot, c: lone CleanUp] {
  Step.action' = act and Step.snapshot' = s and Step.cleanUp' = c
}

/** engine/snapshots.py: enter. Its base was done when the lists were read, some time before. */
pred enter[s: Snapshot] {
  s not in Entered and s.base in Finished
  Writing' = Writing + s and Done' = Done and Deleting' = Deleting
  Entered' = Entered + s and Checked' = Checked and Finished' = Finished and Bucket' = Bucket
  cleanUpsStay and step[Enter, s, none]
}

/** SnapshotAttempt.append and commit, steps 1 and 2. It may be late: after its item was deleted. */
pred write[s: Snapshot] {
  s in Entered - Checked - Bucket and s.holder = s
  Bucket' = Bucket + s
  stagesStay and writersStay and cleanUpsStay and step[Write, s, none]
}

/** SnapshotAttempt._base_is_there. */
pred checkBase[s: Snapshot] {
  s in Entered - Checked and (s.holder = s implies s in Bucket)
  s.base in Done or CommitsSnapshotsWithoutCheckingTheirBase in Engine.weak
  Checked' = Checked + s and Entered' = Entered and Finished' = Finished and Bucket' = Bucket
  stagesStay and cleanUpsStay and step[Check, s, none]
}

/** SnapshotAttempt.commit, step 3, by engine/snapshots.py: move. */
pred finish[s: Snapshot] {
  s in Checked - Finished
  s in Writing or (FinishesSnapshotsThatAreDeleted in Engine.weak and s in Deleting)
  Writing' = Writing - s and Done' = Done + s and Deleting' = Deleting - s
  Finished' = Finished + s and Entered' = Entered and Checked' = Checked and Bucket' = Bucket
  cleanUpsStay and step[Finish, s, none]
}

/** CleanUp.remove_snapshots, step 1, also of snapshots under way, and of those that another clean-up has marked. */
pred mark[c: CleanUp, s: Snapshot] {
  c not in Removing + Sweeping + Over and s not in c.marked
  s in Writing + Done + Deleting
  Writing' = Writing - s and Done' = Done - s and Deleting' = Deleting + s
  marked' = marked + c -> s and carried' = carried and orphans' = orphans
  writersStay and Bucket' = Bucket and phasesStay and step[Mark, s, c]
}

/** Step 2, and what the snapshots that are done name. */
pred readAgain[c: CleanUp] {
  c not in Removing + Sweeping + Over
  (no Writing or DeletesBesideSnapshotsUnderWay in Engine.weak)
    implies (Removing' = Removing + c and Over' = Over)
    else (Removing' = Removing and Over' = Over + c)
  DeletesBucketsThatWereCarriedOn in Engine.weak
    implies carried' = carried
    else carried' = carried + c -> Done.holder
  Sweeping' = Sweeping and marked' = marked and orphans' = orphans
  stagesStay and writersStay and Bucket' = Bucket and step[ReadAgain, none, c]
}

/** Step 3, by _remove_snapshot: the bucket that a marked snapshot names, unless another one has carried it on. */
pred removeBucket[c: CleanUp, s: Snapshot] {
  c in Removing and s in c.marked and s.holder in Bucket - c.carried
  Bucket' = Bucket - s.holder
  stagesStay and writersStay and cleanUpsStay and step[RemoveBucket, s, c]
}

/** Then its item, if its stage is still the same. */
pred removeItem[c: CleanUp, s: Snapshot] {
  c in Removing and s in c.marked & Deleting and s.holder not in Bucket - c.carried
  Deleting' = Deleting - s and Writing' = Writing and Done' = Done
  writersStay and Bucket' = Bucket and cleanUpsStay and step[RemoveItem, s, c]
}

/** CleanUp.remove_orphan_buckets: buckets that no snapshot names, unless a snapshot is under way. */
pred findOrphans[c: CleanUp] {
  c not in Sweeping
  no Writing or SweepsBesideSnapshotsUnderWay in Engine.weak
  Sweeping' = Sweeping + c and Removing' = Removing - c and Over' = Over - c
  orphans' = orphans + c -> (Bucket - Done.holder) and marked' = marked and carried' = carried
  stagesStay and writersStay and Bucket' = Bucket and step[FindOrphans, none, c]
}

pred removeOrphan[c: CleanUp, s: Snapshot] {
  c in Sweeping and s in c.orphans & Bucket
  Bucket' = Bucket - s
  stagesStay and writersStay and cleanUpsStay and step[RemoveOrphan, s, c]
}

pred nothing { stagesStay and writersStay and Bucket' = Bucket and cleanUpsStay and step[Nothing, none, none] }

fact Trace {
  always (
    nothing
    or (some s: Snapshot | enter[s] or write[s] or checkBase[s] or finish[s])
    or (some c: CleanUp | readAgain[c] or findOrphans[c]
      or (some s: Snapshot | mark[c, s] or removeBucket[c, s] or removeItem[c, s] or removeOrphan[c, s]))
  )
}

// What docs/guarantees.md promises.

/** Snapshots and clean-up never change what a version holds: the bucket of a snapshot that is done is there. */
pred whole { Done.holder in Bucket }

pred sound { no Engine.weak }

Whole: check { sound implies always whole } for 2 but 12 steps

run commits_snapshots_without_checking_their_base {
  Engine.weak = CommitsSnapshotsWithoutCheckingTheirBase and eventually not whole
} for 2 but 1 CleanUp, 12 steps
run deletes_beside_snapshots_under_way {
  Engine.weak = DeletesBesideSnapshotsUnderWay and eventually not whole
} for 2 but 1 CleanUp, 12 steps
run deletes_buckets_that_were_carried_on {
  Engine.weak = DeletesBucketsThatWereCarriedOn and eventually not whole
} for 2 but 1 CleanUp, 12 steps
run finishes_snapshots_that_are_deleted {
  Engine.weak = FinishesSnapshotsThatAreDeleted and eventually not whole
} for 2 but 1 CleanUp, 12 steps
run sweeps_beside_snapshots_under_way {
  Engine.weak = SweepsBesideSnapshotsUnderWay and eventually not whole
} for 2 but 1 CleanUp, 12 steps

/** The model is not empty: a bucket outlives the snapshot that wrote it. */
run reaches_a_bucket_that_outlives_its_snapshot {
  sound and eventually (some s: Done | s.holder in Finished - Writing - Done - Deleting)
} for 2 but 1 CleanUp, 12 steps
