package org.apache.spark.sql.dynastate

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** Lets transformWithState run on dynastate: Spark 4.2 and newer allow it on providers of a list of class names only.
 * Also refuses queries that would not run on dynastate although the session says so: `RefusePinnedProvider`. Tells
 * tasks the id of their query: `QueryIdConf`. Lets queries be in real-time mode: `ProviderOfQueries`. Computes the
 * state of batches that sinks skip: `SkippedBatches`. Set by `spark.sql.extensions`; `dynastate.configure` does so.
 * Does not change plans of a session with another provider.
 */
class DynastateExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    ProviderOfQueries.inject(extensions)
    RefusePinnedProvider.inject(extensions)
    QueryIdConf.inject(extensions)
    SkippedBatches.inject(extensions)
    extensions.injectColumnar(_ =>
      new ColumnarRule {
        // Columnar rules run after the rule that fills in state information, so that the copies have it.
        override val preColumnarTransitions: Rule[SparkPlan] = AllowTransformWithState
      })
  }
}

private object AllowTransformWithState extends Rule[SparkPlan] {
  override def apply(plan: SparkPlan): SparkPlan =
    if (!RefusePinnedProvider.isChosen) plan
    else plan.transformUp {
      case node: TransformWithStateExec if !node.isInstanceOf[DynastateTransformWithStateExec] =>
        DynastateTransformWithStateExec(node)
      case node: TransformWithStateInPySparkExec if !node.isInstanceOf[DynastateTransformWithStateInPySparkExec] =>
        DynastateTransformWithStateInPySparkExec(node)
    }
}
