package org.apache.spark.sql.dynastate.upstream

import io.dynastate.spark.DynamoDBStateStoreProvider

import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming._

// Suites that take the session's provider need no subclass.

class TransformWithState extends TransformWithStateUnsafeRowSuite with OnDynamoDB
class TransformWithListState extends TransformWithListStateSuite with OnDynamoDB
class TransformWithMapState extends TransformWithMapStateSuite with OnDynamoDB
class TransformWithValueStateTTL extends TransformWithValueStateTTLSuite with OnDynamoDB
class TransformWithListStateTTL extends TransformWithListStateTTLSuite with OnDynamoDB
class TransformWithMapStateTTL extends TransformWithMapStateTTLSuite with OnDynamoDB
class TransformWithStateChaining extends TransformWithStateChainingSuite with OnDynamoDB
class TransformWithStateInitialState extends TransformWithStateInitialStateSuite with OnDynamoDB

class GroupState extends FlatMapGroupsWithStateSuite with OnDynamoDB
class SessionWindow extends StreamingSessionWindowSuite with OnDynamoDB
class InnerJoin extends StreamingInnerJoinWithoutVCFSuite with OnDynamoDB
class OuterJoin extends StreamingOuterJoinWithoutVCFSuite with OnDynamoDB
class FullOuterJoin extends StreamingFullOuterJoinWithoutVCFSuite with OnDynamoDB
class LeftSemiJoin extends StreamingLeftSemiJoinWithoutVCFSuite with OnDynamoDB

class InnerJoinV4 extends StreamingInnerJoinV4Suite with OnDynamoDB
class OuterJoinV4 extends StreamingOuterJoinV4Suite with OnDynamoDB
class FullOuterJoinV4 extends StreamingFullOuterJoinV4Suite with OnDynamoDB
class LeftSemiJoinV4 extends StreamingLeftSemiJoinV4Suite with OnDynamoDB

class TransformWithStateReader extends StateDataSourceTransformWithStateSuite with OnDynamoDB

class TransformWithListStateWithRowChecksum extends TransformWithListStateSuiteWithRowChecksum with OnDynamoDB
class TransformWithMapStateWithRowChecksum extends TransformWithMapStateSuiteWithRowChecksum with OnDynamoDB
class TransformWithStateChainingWithRowChecksum extends TransformWithStateChainingSuiteWithRowChecksum with OnDynamoDB
class TransformWithStateInitialStateWithRowChecksum extends TransformWithStateInitialStateSuiteWithRowChecksum
  with OnDynamoDB
class TransformWithStateReaderWithRowChecksum extends StateDataSourceTransformWithStateSuiteWithRowChecksum
  with OnDynamoDB

class StateReader extends StateDataSourceReadSuite with OnDynamoDB {
  override def newStateStoreProvider(): StateStoreProvider = new DynamoDBStateStoreProvider
  override def beforeAll(): Unit = {
    super.beforeAll()
    spark.conf.set(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[DynamoDBStateStoreProvider].getName)
  }
}

class ChangeFeed extends StateDataSourceChangeDataReaderSuite {
  override def newStateStoreProvider(): StateStoreProvider = new DynamoDBStateStoreProvider
  override def beforeAll(): Unit = {
    super.beforeAll()
    spark.conf.set(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[DynamoDBStateStoreProvider].getName)
  }
}
