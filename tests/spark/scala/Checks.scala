package io.dynastate.tests

import java.nio.file.Path

import scala.util.control.NonFatal

import io.dynastate.compat.Absent

/** Runs named checks, and prints for each a line that test_jvm.py reads: `ok` or `failed`, its name, why.
 *
 * @param named runs only those whose names have this, or one of these with | between them
 * @param without the same for those that are left out
 * @param share of random examples only one in so many
 */
final class Checks(named: String = "", without: Option[String] = None, share: Int = 1) {

  /** Numbers of random examples. */
  def rounds(count: Int): Range = 0 until count / share

  def check(name: String)(body: => Unit): Unit = if (isOneOf(name, named) && !without.exists(isOneOf(name, _))) {
    try {
      val startNanos = System.nanoTime()
      body
      say("ok", name, s"${(System.nanoTime() - startNanos) / 1000000} ms")
    } catch {
      case absent: Absent => say("ok", name, absent.getMessage)
      case e @ (NonFatal(_) | _: StackOverflowError | _: OutOfMemoryError) =>
        say("failed", name, e.toString)
        System.err.println(s"$name:")
        e.printStackTrace()
    }
  }

  /** The check with puts, and with appends to lists, which applied twice are not the same as once. */
  def checkBothWays(name: String)(body: Writes => Unit): Unit = {
    check(s"$name, by puts")(body(Writes.Puts))
    check(s"$name, by appends")(body(Writes.Appends))
  }

  private def isOneOf(name: String, parts: String): Boolean = parts.split('|').exists(name.contains(_))

  private def say(what: String, name: String, why: String): Unit = {
    println(s"$what\t$name\t${why.linesIterator.mkString(" ")}")
    System.out.flush()
  }
}

object Checks {
  def require(condition: Boolean, message: => String): Unit = if (!condition) throw new AssertionError(message)

  def same(actual: Any, expected: Any, what: => String = ""): Unit =
    require(actual == expected, s"$what: found $actual, expected $expected".stripPrefix(": "))

  def waitUntil(what: => String)(isTrue: => Boolean): Unit = {
    val deadline = System.nanoTime() + 30000000000L
    while (!isTrue) {
      require(System.nanoTime() < deadline, s"not within 30 s: $what")
      Thread.sleep(20)
    }
  }

  /** The messages of what a body throws, and of its causes. */
  def failure(body: => Any): String = {
    val error =
      try { body; null }
      catch {
        case absent: Absent => throw absent
        case NonFatal(e) => e
      }
    require(error != null, "nothing was thrown")
    Iterator.iterate(error)(_.getCause).takeWhile(_ != null).map(_.toString).mkString(" <- ")
  }

  def mustFail(says: String*)(body: => Any): Unit = {
    val message = failure(body)
    says.foreach(each => require(message.contains(each), s"'$each' is not in: $message"))
  }
}

/** {{{
 * Main endpoint=URL python=PATH vectors=FOLDER scratch=FOLDER seed=NUMBER
 *      [only=sidecar | only=memory | only=bound | only=disk] [named=TEXT] [without=TEXT] [share=NUMBER]
 * }}}
 *
 * `only=sidecar`: only the start of a sidecar, for a JVM whose folder for temporary files has a long name.
 * `only=memory`: without a sidecar. `only=bound` and `only=disk`: with nothing else on the heap. `named=TEXT|TEXT`:
 * only checks whose names have one of the texts; `without`: no such. `share=3`: a third of random examples.
 */
object Main {
  def main(arguments: Array[String]): Unit = {
    val words = arguments.map(_.split("=", 2)).map { case Array(name, value) => name -> value }.toMap
    val seed = words("seed").toLong
    println(s"seed $seed")
    val checks = new Checks(words.getOrElse("named", ""), words.get("without"), words.getOrElse("share", "1").toInt)
    val world = new World(words("endpoint"), words("python"), Path.of(words("scratch")))
    if (words.get("only").contains("sidecar")) new SidecarChecks(checks, world).longFolder()
    else if (words.get("only").contains("memory")) runInMemory(checks, words, seed)
    else if (words.get("only").exists(Set("bound", "disk")))
      new BoundChecks(checks, world, seed, words("only") == "disk").run()
    else {
      runInMemory(checks, words, seed)
      new ProviderChecks(checks, world, seed).run()
      new SidecarChecks(checks, world).run()
    }
    // Hadoop and the pool of deadlines leave threads.
    System.exit(0)
  }

  private def runInMemory(checks: Checks, words: Map[String, String], seed: Long): Unit = {
    new VectorChecks(checks, Path.of(words("vectors"))).run()
    new MemoryChecks(checks, seed).run()
    new OrderChecks(checks, seed).run()
    new MovedScanChecks(checks, seed).run()
    new DiskChecks(checks, seed).run()
    new SnapshotChecks(checks, seed).run()
  }
}
