package io.dynastate.benchmarks

/** Arguments of one process of a benchmark, as `name=value`. A name without a dot is the benchmark's own; a name with a
 * dot is conf, and reaches the provider as a session's conf would.
 */
private[benchmarks] final class Arguments(args: Array[String], known: Set[String]) {
  private val words = args.map { argument =>
    argument.split("=", 2) match {
      case Array(name, value) => name -> value
      case _ => throw new IllegalArgumentException(s"not a name=value argument: $argument")
    }
  }.toMap
  private val own = words.filter(!_._1.contains("."))
  require(own.keySet.subsetOf(known),
    s"unknown arguments: ${(own.keySet -- known).mkString(", ")}; known: ${known.mkString(", ")}")

  val conf: Map[String, String] = words.filter(_._1.contains("."))

  def text(name: String): String = own.getOrElse(name, throw new IllegalArgumentException(s"argument missing: $name"))

  def int(name: String): Int = text(name).toInt

  def int(name: String, default: Int): Int = own.get(name).fold(default)(_.toInt)

  def long(name: String, default: Long): Long = own.get(name).fold(default)(_.toLong)

  def isSet(name: String): Boolean = own.get(name).exists(_.toBoolean)
}
