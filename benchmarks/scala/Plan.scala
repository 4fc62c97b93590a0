package io.dynastate.benchmarks

/**
 * What one process of the benchmark does, read from `name=value` arguments. A name without a dot is
 * the benchmark's own; a name with a dot is conf, and reaches the provider as a session's conf would.
 *
 * @param provider class name of a StateStoreProvider with a public no-argument constructor
 * @param rows keys in the state
 * @param updates keys got and then put in one batch; never more than `rows`
 * @param batches batches that are measured
 * @param warmup batches of the same kind before them
 * @param loadRows rows a batch of the initial load
 * @param seed of the choice of keys
 * @param checkpoint state root: a folder of its own for each provider
 * @param reopen true: only open, in this fresh process, what an earlier run with the same plan left
 */
private[benchmarks] final case class Plan(
    provider: String,
    rows: Int,
    updates: Int,
    batches: Int,
    warmup: Int,
    loadRows: Int,
    seed: Long,
    checkpoint: String,
    reopen: Boolean,
    conf: Map[String, String]) {

  def loadBatches: Int = (rows + loadRows - 1) / loadRows

  /** The version the whole run ends at: every batch of it commits one. */
  def lastVersion: Long = loadBatches.toLong + warmup + batches

  /** A row is loaded with count 0 and each update adds one, so this is what all counts add up to. */
  def countsAtEnd: Long = updates.toLong * (warmup + batches)
}

private[benchmarks] object Plan {

  private val Names =
    Set("provider", "rows", "updates", "batches", "warmup", "loadRows", "seed", "checkpoint", "reopen")

  def parse(args: Array[String]): Plan = {
    val words = args.map { argument =>
      argument.split("=", 2) match {
        case Array(name, value) => name -> value
        case _ => throw new IllegalArgumentException(s"not a name=value argument: $argument")
      }
    }.toMap
    val (conf, own) = words.partition { case (name, _) => name.contains(".") }
    val unknown = own.keySet -- Names
    require(unknown.isEmpty, s"unknown arguments: ${unknown.mkString(", ")}; known: ${Names.mkString(", ")}")
    val rows = own.getOrElse("rows", "1000000").toInt
    Plan(
      provider = own("provider"),
      rows = rows,
      updates = math.min(own.getOrElse("updates", "20000").toInt, rows),
      batches = own.getOrElse("batches", "15").toInt,
      warmup = own.getOrElse("warmup", "5").toInt,
      loadRows = math.min(own.getOrElse("loadRows", "100000").toInt, rows),
      seed = own.getOrElse("seed", "1").toLong,
      checkpoint = own("checkpoint"),
      reopen = own.getOrElse("reopen", "false").toBoolean,
      conf = conf)
  }
}
