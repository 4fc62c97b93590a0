package org.apache.spark.sql.dynastate

import org.apache.spark.{QueryContext, SparkException}
import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.execution.streaming.state.RecordType
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.util.NextIterator

/** Spark's own errors that only code below `org.apache.spark.sql` may make. */
object SparkInternals {
  def unexpectedVersion(version: Long): Throwable = QueryExecutionErrors.unexpectedStateStoreVersion(version)

  /** Spark shows its user the message only, not the cause: so it carries what the cause says. */
  def failedToCommit(store: String, cause: Throwable): Throwable =
    QueryExecutionErrors.failedToCommitStateFileError(s"$store (${cause.getMessage})", cause)

  /** The same for a version that cannot be opened; Spark's own message of this error has no room for a reason. */
  def cannotLoad(cause: Throwable): Throwable = {
    val condition = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
    new SparkException(s"[$condition] An error occurred during loading state: ${cause.getMessage}", cause, Some(condition),
      Map.empty[String, String], Array.empty[QueryContext], None)
  }
}

/** Spark's own kind of iterator, which only code below `org.apache.spark` may name. */
abstract class ChangeIterator extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]

/**
 * Lets transformWithState run on dynastate: Spark 4.2 and newer allow it on providers of a list of class names only. Set by
 * `spark.sql.extensions`; `dynastate.configure` does so. Touches no plan of a session with another provider.
 */
class DynastateExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectColumnar(_ => new ColumnarRule {
    // Columnar rules run after the rule that fills in state information, so that the copies have it.
    override val preColumnarTransitions: Rule[SparkPlan] = AllowTransformWithState
  })
}

private object AllowTransformWithState extends Rule[SparkPlan] {
  private val Provider = "io.dynastate.spark.DynamoDBStateStoreProvider"

  override def apply(plan: SparkPlan): SparkPlan =
    if (SQLConf.get.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) != Provider) plan
    else plan.transformUp {
      case node: TransformWithStateExec if !node.isInstanceOf[DynastateTransformWithStateExec] => DynastateTransformWithStateExec(node)
      case node: TransformWithStateInPySparkExec if !node.isInstanceOf[DynastateTransformWithStateInPySparkExec] =>
        DynastateTransformWithStateInPySparkExec(node)
    }
}
