package io.dynastate.conformance

import org.apache.spark.SPARK_VERSION

/** All checks of a case that a provider does not pass, and why. */
final case class Difference(reason: String, labels: Set[String])

/** The error of a provider that cannot do something. */
final case class Refusal(condition: String, reason: String)

/** Differences between providers and the cases. The cases expect what Spark's operators rely on, and otherwise the more
 * lenient behaviour. An entry that is not true is a failure. Ours have no entry.
 */
object Differences {
  private val OneAtATime = "one store at a time: it waits for the one that is open"
  private val Unreleased = "raises CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR"

  private val Shared = "stores of one thread share the database, which is at one version at a time"
  private val CannotCommit = "raises CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT"

  private val refusals: Map[(String, Need), Refusal] = Map(("hdfs", Need.Families) -> Refusal(
      "UNSUPPORTED_FEATURE.STATE_STORE_MULTIPLE_COLUMN_FAMILIES", "it has no column families"),
    ("hdfs", Need.Ids) -> Refusal("STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED", "it has no checkpoint ids"))

  private val ofHdfs: Map[String, Difference] = Map(
    "nulls-are-refused" -> Difference("a missing key is a NullPointerException",
      Set("put of no key", "get of no key", "remove of no key", "existence of no key")),
    "run-again-by-another-executor" -> Difference(
      "a version in memory is not compared with the files that another executor has replaced since",
      Set("the first reads what the second committed")),
    "twins-on-two-executors" -> Difference(
      "a version in memory is not compared with the files that another executor has replaced since",
      Set("by the other too")),
    "checkpoint-info-before-commit" -> Difference("it has no ids, and answers at any time", Set("before commit")),
    "upgraded-at-another-version" -> Difference("it opens the version again, and does not look at what was read",
      Set("it is not what was read")),
    "change-feed" -> Difference("wrong versions are an AssertionError",
      Set("from version 0", "the end before the start")),
    "an-empty-store-above-the-last-version" -> Difference("only RocksDB's has offline repartition, the only use of it",
      Set("raises STATE_STORE_UNSUPPORTED_OPERATION")))

  private val ofRocksDB: Map[String, Difference] = Map(
    "a-reader-beside-a-writer" -> Difference(OneAtATime, Set(Unreleased)),
    "a-reader-beside-a-writer-in-families" -> Difference(OneAtATime, Set(Unreleased)),
    "stores-side-by-side" -> Difference(OneAtATime, Set(Unreleased)),
    "a-zombie-commits-last" -> Difference(OneAtATime, Set(Unreleased)),
    "unreleased-stores" -> Difference(OneAtATime, Set(Unreleased)),
    "reads-after-commit" -> Difference("after commit the database belongs to the next store",
      Set("get", "iterate", "exists")),
    "abort-more-than-once" -> Difference("abort after commit is out of order; Spark never does it",
      Set("abort after commit")),
    "metrics-at-any-time" -> Difference("metrics are those of a commit", Set("before commit")),
    "removal-of-a-family-is-aborted" -> Difference(
      "in checkpoint format v1 the snapshot that the first attempt had to write is read, not the changelog of its " +
        "retry", Set("after the retry")),
    "a-family-made-again-with-other-keys" ->
      Difference("encoders are cached by the family's name", Set("raises AssertionError")),
    "values-of-an-earlier-schema" -> Difference(
      "it fails to read them here, and reads them in queries; the cause is not known", Set("raises EOFException")),
    "removal-of-a-range" -> Difference("keys removed by range are not counted, as nothing reads them", Set("keys")),
    "removal-of-a-range-the-wrong-way-round" -> Difference("RocksDB calls it an error", Set("it holds no rows")),
    "lists-iterated-side-by-side" -> Difference("iterators of a family share the row of their key",
      Set("keys and values")),
    "empty-lists" -> Difference("an empty list is a key like others; list state refuses to put one",
      Set("it is no key", "it is no key any more", "keys")),
    "run-again-by-another-executor" -> Difference(
      "a version that is loaded is not compared with the files that another executor has replaced since",
      Set("the first reads what the second committed")),
    "twins-on-two-executors" -> Difference(
      "a version that is loaded is not compared with the files that another executor has replaced since",
      Set("by the other too")),
    "from-v1-to-v2" -> Difference(
      "a version that was opened by its number is read, but cannot be committed on: None.get",
      Set("raises CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT")),
    "from-v2-to-v1" -> Difference("file names hold the ids",
      Set("raises CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE")),
    "from-v2-to-v1-with-appends" -> Difference("file names hold the ids",
      Set("raises CANNOT_LOAD_STATE_STORE.UNCATEGORIZED")),
    "change-feed" -> Difference("wrong versions are an AssertionError",
      Set("from version 0", "the end before the start")))

  private val tables = Map("hdfs" -> ofHdfs, "rocksdb" -> ofRocksDB)

  /** Differences of older Sparks' stores from the newest, or None. */
  private val ofOlder: Map[(String, String), Map[String, Option[Difference]]] = Map(("3.5", "rocksdb") -> Map(
      "a-reader-beside-a-writer" -> Some(Difference(Shared, Set("the reader sees nothing of it", "nor after commit"))),
      "stores-side-by-side" -> Some(Difference(Shared,
          Set("readers", "readers after a commit",
            "raises AssertionError"))),
      "a-zombie-commits-last" -> Some(Difference(Shared, Set("raises AssertionError"))),
      "a-commit-that-fails" -> Some(Difference("it raises what the file system does",
          Set("commit", "a second commit"))),
      "unreleased-stores" -> None, "reads-after-commit" -> None, "metrics-at-any-time" -> None),
    ("4.0", "rocksdb") -> Map(
      "a-reader-beside-a-writer" -> Some(Difference(Shared, Set("the reader sees nothing of it", "nor after commit"))),
      "a-reader-beside-a-writer-in-families" -> Some(Difference(Shared,
          Set("the reader sees nothing of it", "nor after commit"))),
      "stores-side-by-side" -> Some(Difference(Shared, Set("readers", "readers after a commit", CannotCommit))),
      "a-zombie-commits-last" -> Some(Difference(Shared, Set(CannotCommit))), "unreleased-stores" -> None,
      "lists-iterated-side-by-side" -> None, "reads-after-commit" -> None, "metrics-at-any-time" -> None,
      "internal-families-are-not-counted" -> Some(Difference("those of before are counted",
          Set("by another instance")))),
    ("4.1", "rocksdb") -> Map("lists-iterated-side-by-side" -> None,
      "empty-lists" -> Some(Difference("no list may be empty", Set("raises NegativeArraySizeException"))),
      "upgraded-by-another-instance" -> Some(Difference("the instance that read must write",
          Set("raises CANNOT_LOAD_STATE_STORE.UNCATEGORIZED")))))

  private val minor = SPARK_VERSION.split('.').take(2).mkString(".")

  /** Those of a case with appends are those with puts, unless it has an entry of its own. */
  def of(subject: Subject, name: String): Option[Difference] = {
    val older = ofOlder.getOrElse((minor, subject.kind), Map.empty)
    val newest = tables.getOrElse(subject.kind, Map.empty)
    val entry = Seq(name, name.stripSuffix(Cases.WithAppends)).find(each =>
      older.contains(each) || newest.contains(each))
    entry.flatMap(each => older.getOrElse(each, newest.get(each)))
  }

  private val olderRefusals: Map[(String, String, Need), Refusal] =
    Map(("4.0", "hdfs", Need.Ids) -> Refusal("AssertionError", "it has no checkpoint ids"))

  def refusal(subject: Subject, need: Need): Option[Refusal] =
    olderRefusals.get((minor, subject.kind, need)).orElse(refusals.get((subject.kind, need)))
}
