package io.dynastate

/**
 * What later Sparks have, for tests that are written for the newest: where the Spark they run on has no such call, what its
 * operators do instead, and where they do nothing of the kind, `Absent`.
 */
package object later extends later.Later41 with later.Later42 with later.Later43

package later {
  final class Absent(what: String) extends RuntimeException(s"this Spark has no $what")
}
