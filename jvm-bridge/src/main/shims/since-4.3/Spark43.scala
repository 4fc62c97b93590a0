package io.dynastate.spark

import org.apache.spark.sql.dynastate.internals.ReusablePairs

/** Spark's traits as they are since 4.3. */
private[spark] trait ReadStateStore43 extends ReadStateStore42

private[spark] trait StateStore43 extends StateStore42 with ReadStateStore43 with ReusablePairs

private[spark] trait StateStoreProvider43 extends StateStoreProvider42
