package io.dynastate

/** What the one who gets an error should do; numbers are the protocol's (docs/protocol.md, "Errors"). */
object ErrorKind {
  val Configuration = 1
  val Unavailable = 2
  val Unknown = 3
  val Missing = 4
  val Corrupt = 5
  val Mismatch = 6
  val Internal = 7

  private val names = Map(Configuration -> "configuration", Unavailable -> "unavailable", Unknown -> "outcome unknown",
    Missing -> "version missing", Corrupt -> "state corrupt", Mismatch -> "versions differ",
    Internal -> "defect of dynastate, please report it")

  def name(kind: Int): String = names.getOrElse(kind, s"error kind $kind")
}

/** Every error of dynastate in the JVM. The message says what to do, and carries the facts last, as key=value. */
class DynastateException(val kind: Int, message: String, cause: Throwable = null)
  extends RuntimeException(s"dynastate (${ErrorKind.name(kind)}): $message", cause)
