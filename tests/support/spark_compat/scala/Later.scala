package io.dynastate

/**
 * Calls of later Sparks, for tests that are written for the newest. On a Spark without the call, they do what its operators do instead, or
 * raise `Absent` if its operators do nothing of the kind.
 */
package object later extends later.Later41 with later.Later42 with later.Later43

package later {
  final class Absent(what: String) extends RuntimeException(s"this Spark has no $what")
}
