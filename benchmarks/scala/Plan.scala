package io.dynastate.benchmarks

/** The work of a benchmark, read from `name=value` arguments (see `Arguments`).
 *
 * @param provider class name of a StateStoreProvider with a public no-argument constructor
 * @param rows keys in the state
 * @param valueBytes size of a value, 72 or more; a key has 40
 * @param updates keys got and then put in one batch; never more than `rows`
 * @param batches batches that are measured
 * @param warmup batches of the same kind before them
 * @param loadRows rows a batch of the initial load
 * @param seed of the choice of keys
 * @param checkpoint state root: a folder of its own for each provider
 */
private[benchmarks] final case class Plan(provider: String, rows: Int, valueBytes: Int, updates: Int, batches: Int,
    warmup: Int, loadRows: Int, seed: Long, checkpoint: String, conf: Map[String, String]) {

  def loadBatches: Int = (rows + loadRows - 1) / loadRows

  /** The version the whole run ends at: every batch of it commits one. */
  def lastVersion: Long = loadBatches.toLong + warmup + batches

  /** A row is loaded with count 0 and each update adds one, so this is what all counts add up to. */
  def countsAtEnd: Long = updates.toLong * (warmup + batches)
}

private[benchmarks] object Plan {

  val Names: Set[String] =
    Set("provider", "rows", "valueBytes", "updates", "batches", "warmup", "loadRows", "seed", "checkpoint")

  def of(arguments: Arguments): Plan = {
    val rows = arguments.int("rows", 1000000)
    Plan(provider = arguments.text("provider"), rows = rows, valueBytes = arguments.int("valueBytes", Rows.ValueBytes),
      updates = math.min(arguments.int("updates", 20000), rows), batches = arguments.int("batches", 15),
      warmup = arguments.int("warmup", 5), loadRows = math.min(arguments.int("loadRows", 100000), rows),
      seed = arguments.long("seed", 1), checkpoint = arguments.text("checkpoint"), conf = arguments.conf)
  }
}
