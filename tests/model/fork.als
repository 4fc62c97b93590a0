/*
 * Forks of one store: pins in the origin, clean-up and drop of the origin, and drops of forks that are made again.
 *
 * One action is one request to DynamoDB, or one read of several items. README.md maps actions to functions.
 * Whoever acts may die: then it acts no more. Whoever is slow acts later, when others have.
 */
module fork

/** The items of the origin: its meta item, and references, version lists or snapshots, each with its parts. */
abstract sig Item {}
one sig Meta extends Item {}
sig Reference extends Item {}

/** The name of a fork's store. */
sig Name {}

/** A fork that is made, with an id of its own; a name may be used again after a drop. All was there when it read. */
sig Making { of: one Name, needs: some Reference }

/** The weaknesses that a check may switch on; one has the name of a mutation in tests/simulation/mutations.py. */
abstract sig Weakness {}
one sig DeletesPinnedItems, PinsBeforeItHasAMetaItem, PinsWithoutLooking, DropsStoresWithForks,
  ReadsForksBeforePins, PinsByNameAlone extends Weakness {}
one sig Engine { weak: set Weakness }

/** Items that are there, and references whose parts are. */
var sig There in Item {}
var sig Stored in Reference {}
/** The origin's meta item is marked: the store is being dropped. */
var lone sig Marked in Meta {}
one sig Origin { var pins: Item -> Making }

/** The meta items of forks. */
one sig Forks { var meta: Name -> lone Making }
/** Makers that have begun, and that were refused; forks that have all their lists; forks that are being dropped. */
var sig Begun, Refused, Complete, Dropping in Making {}
one sig Makers { var pinned: Making -> Item }

/** The search for pins of deleted forks, with what it has read; it is at work once. */
one sig Search { var pins: Item -> Making, var forks: set Making }
var lone sig ReadPins, ReadForks in Search {}

abstract sig Action {}
one sig Nothing, Begin, Pin, Complete_, DropFork, Unpin, DeleteMeta, DeleteReference, DeleteParts, Mark, DropReference,
  DropMeta, ReadPins_, ReadForks_, RemovePin extends Action {}
one sig Step { var action: one Action, var making: lone Making, var item: lone Item }

fact Init {
  There = Item and Stored = Reference
  no Marked and no Origin.pins and no Forks.meta and no Makers.pinned
  no Begun + Refused + Complete + Dropping
  no Search.pins and no Search.forks and no ReadPins + ReadForks
  Step.action = Nothing and no Step.making and no Step.item
}

pred originStays { There' = There and Stored' = Stored and Marked' = Marked and Origin.pins' = Origin.pins }
pred makersStay { Begun' = Begun and Refused' = Refused and Complete' = Complete and Makers.pinned' = Makers.pinned }
pred forksStay { Forks.meta' = Forks.meta and Dropping' = Dropping }
pred searchStays {
  Search.pins' = Search.pins and Search.forks' = Search.forks and ReadPins' = ReadPins and ReadForks' = ReadForks
}
pred step[act: Action, m: lone Making, i: lone Item] {
  Step.action' = act and Step.making' = m and Step.item' = i
}

/** The pins that a request about the pin of a making is about. */
fun pinsOf[i: Item, m: Making]: Item -> Making {
  PinsByNameAlone in Engine.weak implies i -> of.(m.of) else i -> m
}

/** operations/lifecycle/fork.py: _StoreFork._begin, step 2: the meta item lists the pins. */
pred begin[m: Making] {
  m not in Begun and no Forks.meta[m.of]
  Forks.meta' = Forks.meta + m.of -> m and Dropping' = Dropping
  Begun' = Begun + m and Refused' = Refused and Complete' = Complete and Makers.pinned' = Makers.pinned
  originStays and searchStays and step[Begin, m, none]
}

/** _StoreFork._pin, step 3: the meta item first. The answer shows whether the item is there, and not being dropped. */
pred pin[m: Making, i: Item] {
  m in Begun - Refused - Complete or (PinsBeforeItHasAMetaItem in Engine.weak and m not in Begun)
  i in Meta + m.needs and i not in Makers.pinned[m]
  i = Meta or Meta in Makers.pinned[m]
  i in There implies Origin.pins' = Origin.pins + i -> m else Origin.pins' = Origin.pins
  ((i in There and i not in Marked) or PinsWithoutLooking in Engine.weak)
    implies (Makers.pinned' = Makers.pinned + m -> i and Refused' = Refused)
    else (Makers.pinned' = Makers.pinned and Refused' = Refused + m)
  There' = There and Stored' = Stored and Marked' = Marked
  Begun' = Begun and Complete' = Complete
  forksStay and searchStays and step[Pin, m, i]
}

/** _StoreFork.finish. */
pred complete[m: Making] {
  m in Begun - Refused - Complete and Makers.pinned[m] = Meta + m.needs
  Complete' = Complete + m and Begun' = Begun and Refused' = Refused and Makers.pinned' = Makers.pinned
  originStays and forksStay and searchStays and step[Complete_, m, none]
}

/** operations/lifecycle/drop.py: _mark, of a fork, on the condition that it is still this one. */
pred dropFork[m: Making] {
  m in Name.(Forks.meta) - Dropping
  Dropping' = Dropping + m and Forks.meta' = Forks.meta
  originStays and makersStay and searchStays and step[DropFork, m, none]
}

/** operations/pins.py: unpin, by a drop, or by a maker that finds its fork dropped (begun). It may be late. */
pred unpin[m: Making, i: Item] {
  m in Dropping
  i = Meta implies no pinsOf[Reference, m] & Origin.pins
  Origin.pins' = Origin.pins - pinsOf[i, m] and Origin.pins' != Origin.pins
  There' = There and Stored' = Stored and Marked' = Marked
  makersStay and forksStay and searchStays and step[Unpin, m, i]
}

/** drop.py: delete_meta, on the condition that it is still this one. */
pred deleteMeta[m: Making] {
  m in Dropping and m.of -> m in Forks.meta
  Forks.meta' = Forks.meta - m.of -> m and Dropping' = Dropping
  originStays and makersStay and searchStays and step[DeleteMeta, m, none]
}

/** CleanUp.remove_versions and remove_snapshots, of the origin: on the condition that nothing is pinned. */
pred deleteReference[r: Reference] {
  r in There
  no r.(Origin.pins) or DeletesPinnedItems in Engine.weak
  There' = There - r and Origin.pins' = Origin.pins - r -> Making
  Stored' = Stored and Marked' = Marked
  makersStay and forksStay and searchStays and step[DeleteReference, none, r]
}

/** CleanUp.remove_parts, or drop.py: _delete_others. */
pred deleteParts[r: Reference] {
  r in Stored - There
  Stored' = Stored - r and There' = There and Marked' = Marked and Origin.pins' = Origin.pins
  makersStay and forksStay and searchStays and step[DeleteParts, none, r]
}

/** drop.py: _mark, of the origin, on the condition that its meta item is not pinned. */
pred mark {
  Meta in There and no Marked
  no Meta.(Origin.pins) or DropsStoresWithForks in Engine.weak
  Marked' = Meta and There' = There and Stored' = Stored and Origin.pins' = Origin.pins
  makersStay and forksStay and searchStays and step[Mark, none, none]
}

/** drop.py: _delete_lists and _delete_others. Other pins on these items are of forks that were refused. */
pred dropReference[r: Reference] {
  some Marked and r in There
  There' = There - r and Origin.pins' = Origin.pins - r -> Making and Stored' = Stored and Marked' = Marked
  makersStay and forksStay and searchStays and step[DropReference, none, r]
}

/** drop.py: delete_meta. */
pred dropMeta {
  Meta in Marked & There and There = Meta
  no There' and Origin.pins' = Origin.pins - Meta -> Making and Stored' = Stored and Marked' = Marked
  makersStay and forksStay and searchStays and step[DropMeta, none, none]
}

/** operations/pins.py: unpin_dropped reads the pins first, */
pred readPins {
  no ReadPins and (no ReadForks or ReadsForksBeforePins in Engine.weak)
  Search.pins' = Origin.pins and ReadPins' = Search and Search.forks' = Search.forks and ReadForks' = ReadForks
  originStays and makersStay and forksStay and step[ReadPins_, none, none]
}

/** then the meta items of the forks, */
pred readForks {
  no ReadForks and (some ReadPins or ReadsForksBeforePins in Engine.weak)
  Search.forks' = Name.(Forks.meta) and ReadForks' = Search and Search.pins' = Search.pins and ReadPins' = ReadPins
  originStays and makersStay and forksStay and step[ReadForks_, none, none]
}

/** then removes pins that no fork lists. */
pred removePin[m: Making, i: Item] {
  some ReadPins and some ReadForks
  i -> m in Search.pins and m not in Search.forks
  i = Meta implies no (Search.pins & Reference -> m) & Origin.pins
  Origin.pins' = Origin.pins - pinsOf[i, m] and Origin.pins' != Origin.pins
  There' = There and Stored' = Stored and Marked' = Marked
  makersStay and forksStay and searchStays and step[RemovePin, m, i]
}

pred nothing { originStays and makersStay and forksStay and searchStays and step[Nothing, none, none] }

fact Trace {
  always (
    nothing or mark or dropMeta or readPins or readForks
    or (some m: Making | begin[m] or complete[m] or dropFork[m] or deleteMeta[m])
    or (some m: Making, i: Item | pin[m, i] or unpin[m, i] or removePin[m, i])
    or (some r: Reference | deleteReference[r] or deleteParts[r] or dropReference[r])
  )
}

// What docs/guarantees.md promises.

/** Forks that are whole and not dropped. */
fun living: set Making { Complete & Name.(Forks.meta) - Dropping }

/** A fork reads exactly what its origin held, whatever clean-up of the origin does. */
pred readable { living.needs in Stored }
/** An origin is not dropped under its forks. */
pred kept { some living implies Meta in There - Marked }
/** A fork that was dropped and made again stays as it is: each fork keeps its pins. */
pred pinned { all m: living | (Meta + m.needs) -> m in Origin.pins }

pred sound { no Engine.weak }

Readable: check { sound implies always readable } for 2 but 1 Name, 1 Reference, 12 steps
Kept: check { sound implies always kept } for 2 but 1 Name, 1 Reference, 12 steps
Pinned: check { sound implies always pinned } for 2 but 1 Name, 1 Reference, 12 steps

run deletes_pinned_items {
  Engine.weak = DeletesPinnedItems and eventually not readable
} for 2 but 1 Name, 1 Reference, 12 steps
run pins_without_looking {
  Engine.weak = PinsWithoutLooking and eventually not readable
} for 2 but 1 Name, 1 Reference, 12 steps
run pins_before_it_has_a_meta_item {
  Engine.weak = PinsBeforeItHasAMetaItem and eventually not readable
} for 2 but 1 Name, 1 Reference, 14 steps
run reads_forks_before_pins {
  Engine.weak = ReadsForksBeforePins and eventually not readable
} for 2 but 1 Name, 1 Reference, 14 steps
run drops_stores_with_forks {
  Engine.weak = DropsStoresWithForks and eventually not kept
} for 2 but 1 Name, 1 Reference, 12 steps
run pins_by_name_alone {
  Engine.weak = PinsByNameAlone and eventually not pinned
} for 2 but 1 Name, 1 Reference, 14 steps

/** The model is not empty: a fork is dropped and made again. */
run reaches_a_second_fork {
  sound and eventually (some m: living, n: Dropping | m.of = n.of)
} for 2 but 1 Name, 1 Reference, 12 steps
