package io.dynastate.spark

/** Spark's traits as they are since 4.3. */
private[spark] trait ReadStateStore43 extends ReadStateStore42

private[spark] trait StateStore43 extends StateStore42 with ReadStateStore43

private[spark] trait StateStoreProvider43 extends StateStoreProvider42
