package io.dynastate

/** Calls of later Sparks, for tests that are written for the newest. On a Spark without the call, they do what its
 * operators do instead, or raise `Absent` if its operators do nothing of the kind.
 */
package object compat extends compat.Compat40 with compat.Compat41 with compat.Compat42 with compat.Compat43

package compat {
  final class Absent(what: String) extends RuntimeException(s"this Spark has no $what")
}
