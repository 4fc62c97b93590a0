package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// slowPartitions writes parameters with five units a second for each partition.
func slowPartitions(t *testing.T) string {
	return changedParameters(t, `"write": { "value": 1000`, `"write": { "value": 5`, `"read": { "value": 3000`, `"read": { "value": 5`)
}

// exhausted starts a world whose one partition has no write units left for more than a minute, if its store is `hot`.
// Another partition has the store `cool`.
func exhausted(t *testing.T) *testWorld {
	t.Helper()
	w := startWorld(t, options{partitions: 2, isNew: true, parameters: slowPartitions(t)})
	if isUpper("hot#0") == isUpper("cool#0") {
		t.Fatal("both stores are in one partition")
	}
	if status, _ := w.call("PutItem", put("hot", 1, strings.Repeat("x", 399_000))); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	w.engine.requests = nil
	return w
}

func isUpper(partitionKey string) bool {
	return positionOf([]byte(partitionKey), nil).hash >= 1<<63
}

func TestUnprocessedItemsComeBackAndTheOthersArrive(t *testing.T) {
	w := exhausted(t)
	w.engine.answer = `{"UnprocessedItems": {}, "ConsumedCapacity": [{"TableName": "delta", "CapacityUnits": 1.0}]}`
	hot := fmt.Sprintf(`{"PutRequest": {"Item": %s}}`, itemText("hot", 99, "x"))
	cool := fmt.Sprintf(`{"PutRequest": {"Item": %s}}`, itemText("cool", 99, `\"quoted\\`))
	request := `{"RequestItems": {"delta": [%s]}, "ReturnConsumedCapacity": "TOTAL"}`
	base := w.statistics().Services[dynamoDBService]["BatchWriteItem"]
	status, answer := w.call("BatchWriteItem", fmt.Sprintf(request, hot+", "+cool))
	if status != http.StatusOK || compact(t, answer["UnprocessedItems"]) != sorted(t, `{"delta": [`+hot+`]}`) {
		t.Errorf("status %d: %v", status, answer)
	}
	if sent := compact(t, w.engine.requests[0]); sent != compact(t, fmt.Sprintf(request, cool)) {
		t.Errorf("the engine was sent %s", sent)
	}
	total := w.statistics().Services[dynamoDBService]["BatchWriteItem"]
	if total.ThrottledItems-base.ThrottledItems != 1 || total.UnitsWritten-base.UnitsWritten != 1 {
		t.Errorf("the counts rose from %+v to %+v", base, total)
	}
}

// sorted returns JSON with its members in the order of their names, as encoding/json writes maps.
func sorted(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return compact(t, value)
}

func TestThrottlingReasonsOfOneItemAndOfAWholeBatch(t *testing.T) {
	w := exhausted(t)
	item := itemText("hot", 99, "x")
	key := `{"store_shard": {"S": "hot#0"}, "part": {"S": "1"}}`
	for operation, body := range map[string]string{
		"PutItem":          put("hot", 99, "x"),
		"UpdateItem":       `{"TableName": "delta", "Key": ` + key + `}`,
		"DeleteItem":       `{"Key": ` + key + `, "TableName": "delta"}`,
		"BatchWriteItem":   `{"RequestItems": {"delta": [{"PutRequest": {"Item": ` + item + `}}, {"DeleteRequest": {"Key": ` + key + `}}]}}`,
		"ExecuteStatement": `{"Statement": "UPDATE \"delta\" SET x = ? WHERE store_shard = ? AND part = '1'", "Parameters": [{"N": "1"}, {"S": "hot#0"}]}`,
	} {
		status, answer := w.call(operation, body)
		if status != http.StatusBadRequest || answer["__type"] != dynamoDBErrors+"ProvisionedThroughputExceededException" {
			t.Errorf("%s: status %d, %v", operation, status, answer)
		}
		reasons := `[{"reason":"TableWriteKeyRangeThroughputExceeded","resource":"arn:delta"}]`
		if got := compact(t, answer["ThrottlingReasons"]); got != reasons {
			t.Errorf("%s: %s", operation, got)
		}
	}
	if len(w.engine.requests) != 0 {
		t.Errorf("the engine was sent %v", w.engine.requests)
	}
	if status, _ := w.call("PutItem", put("cool", 1, "x")); status != http.StatusOK {
		t.Errorf("another partition answers with %d", status)
	}
}

func TestThrottledTransactionIsCancelled(t *testing.T) {
	w := exhausted(t)
	body := fmt.Sprintf(`{"TransactItems": [{"Put": %s}, {"Put": %s}]}`, put("cool", 1, "x"), put("hot", 1, "x"))
	status, answer := w.call("TransactWriteItems", body)
	reasons := `[{"Code":"None"},{"Code":"ThrottlingError","Message":"Throughput exceeds the current capacity of your table or index."}]`
	if status != http.StatusBadRequest || compact(t, answer["CancellationReasons"]) != reasons {
		t.Errorf("status %d: %v", status, answer)
	}
	if answer["__type"] != dynamoDBErrors+"TransactionCanceledException" || len(w.engine.requests) != 0 {
		t.Errorf("%v; the engine was sent %v", answer, w.engine.requests)
	}
}

func TestThrottledStatementFailsAlone(t *testing.T) {
	w := exhausted(t)
	w.engine.answer = `{"Responses": [{"TableName": "delta"}, {"TableName": "other"}]}`
	statement := `{"Statement": "UPDATE \"delta\" SET \"x\" = ? WHERE \"store_shard\" = ? AND part = ?", "Parameters": [{"S": "x"}, {"S": "%s#0"}, {"S": "1"}]}`
	cool, hot := fmt.Sprintf(statement, "cool"), fmt.Sprintf(statement, "hot")
	status, answer := w.call("BatchExecuteStatement", fmt.Sprintf(`{"Statements": [%s, %s, %s]}`, cool, hot, cool))
	responses, _ := answer["Responses"].([]any)
	if status != http.StatusOK || len(responses) != 3 {
		t.Fatalf("status %d: %v", status, answer)
	}
	if failed := compact(t, responses[1]); !strings.Contains(failed, `"Code":"ProvisionedThroughputExceeded"`) {
		t.Errorf("the second response is %s", failed)
	}
	if compact(t, responses[0]) != `{"TableName":"delta"}` || compact(t, responses[2]) != `{"TableName":"other"}` {
		t.Errorf("the responses are %v", responses)
	}
	if sent := compact(t, w.engine.requests[0]); strings.Contains(sent, "hot") {
		t.Errorf("the engine was sent %s", sent)
	}
}

func TestUnprocessedKeysComeBackWithTheirOptions(t *testing.T) {
	w := startWorld(t, options{partitions: 2, isNew: true, parameters: slowPartitions(t)})
	key := `{"store_shard": {"S": "%s#0"}, "part": {"S": "000001"}}`
	hot, cool := fmt.Sprintf(key, "hot"), fmt.Sprintf(key, "cool")
	request := `{"ReturnConsumedCapacity": "TOTAL", "RequestItems": {"delta": {"ConsistentRead": true, "Keys": [%s]}}}`
	// 2,000 KB of one store: 500 units from a partition with five a second.
	w.engine.answer = fmt.Sprintf(`{"Responses": {"delta": [%s]}, "UnprocessedKeys": {}}`,
		itemText("hot", 1, strings.Repeat("x", 2_000*1024)))
	w.call("BatchGetItem", fmt.Sprintf(request, hot))
	w.engine.answer, w.engine.requests = `{"Responses": {"delta": []}, "UnprocessedKeys": {}}`, nil
	status, answer := w.call("BatchGetItem", fmt.Sprintf(request, hot+","+cool))
	expected := sorted(t, fmt.Sprintf(`{"delta": {"ConsistentRead": true, "Keys": [%s]}}`, hot))
	if status != http.StatusOK || compact(t, answer["UnprocessedKeys"]) != expected {
		t.Errorf("status %d: %v", status, answer)
	}
	if sent := compact(t, w.engine.requests[0]); sent != compact(t, fmt.Sprintf(request, cool)) {
		t.Errorf("the engine was sent %s", sent)
	}
	if status, _ := w.call("BatchGetItem", fmt.Sprintf(request, hot)); status != http.StatusBadRequest {
		t.Errorf("without an admitted key: status %d", status)
	}
}

func TestUnitsAreThoseOfTheAnswerOrOfSizes(t *testing.T) {
	w := startWorld(t, options{})
	query := `{"TableName": "delta", "ConsistentRead": %v, "KeyConditionExpression": "#h = :h", ` +
		`"ExpressionAttributeNames": {"#h": "store_shard"}, "ExpressionAttributeValues": {":h": {"S": "s#0"}}}`
	key := `{"store_shard": {"S": "s#0"}, "part": {"S": "000001"}}`
	page := fmt.Sprintf(`{"Items": [%s, %s]}`, itemText("s", 1, strings.Repeat("x", 4000)), itemText("s", 2, strings.Repeat("x", 4000)))
	for _, example := range []struct {
		operation, body, answer string
		read, written           float64
	}{
		{"Query", fmt.Sprintf(query, true), page, 2, 0},
		{"Query", fmt.Sprintf(query, false), page, 1, 0},
		{"Query", fmt.Sprintf(query, true), `{"Items": [], "ConsumedCapacity": {"TableName": "delta", "CapacityUnits": 7.5}}`, 7.5, 0},
		{"PutItem", put("s", 1, strings.Repeat("x", 2500)), `{}`, 0, 3},
		{"PutItem", put("s", 1, strings.Repeat("x", 2500)), `{"ConsumedCapacity": {"TableName": "delta", "CapacityUnits": 1}}`, 0, 3},
		{"BatchGetItem", `{"RequestItems": {"delta": {"Keys": [` + key + `]}}}`,
			`{"Responses": {"delta": [` + itemText("s", 1, strings.Repeat("x", 9000)) + `]}}`, 1.5, 0},
		{"GetItem", `{"TableName": "delta", "Key": {"store_shard": {"S": "s"}, "part": {"S": "1"}}}`, `{}`, 0.5, 0},
		{"UpdateItem", `{"TableName": "delta", "Key": {}}`, `{"Attributes": {"data": {"B": "` + strings.Repeat("AAAA", 1000) + `"}}}`, 0, 3},
		{"TransactWriteItems", `{"TransactItems": [{"Put": ` + put("s", 1, "x") + `}]}`, `{}`, 0, 2},
	} {
		w.engine.answer = example.answer
		base := w.statistics().Services[dynamoDBService][example.operation]
		w.call(example.operation, example.body)
		total := w.statistics().Services[dynamoDBService][example.operation]
		read, written := total.UnitsRead-base.UnitsRead, total.UnitsWritten-base.UnitsWritten
		if read != example.read || written != example.written {
			t.Errorf("%s, answered by %.60s: %v read, %v written", example.operation, example.answer, read, written)
		}
	}
}

// A delete takes the size of its item, which only the engine knows.
func TestDeletesTakeWhatTheEngineReports(t *testing.T) {
	const hot, cool = `{"store_shard": {"S": "hot#0"}, "part": {"S": "1"}}`, `{"store_shard": {"S": "cool#0"}, "part": {"S": "1"}}`
	const capacity = `{"TableName": "delta", "CapacityUnits": 800.0}`
	const statement = `{"Statement": "DELETE FROM delta WHERE store_shard = '%s#0' AND part = '1'"%s}`
	for _, example := range []struct{ operation, body, report, answer string }{
		{"DeleteItem", `{"TableName": "delta", "Key": ` + hot + `%s}`, capacity, `{}`},
		{"BatchWriteItem", `{"RequestItems": {"delta": [{"DeleteRequest": {"Key": ` + hot + `}}, {"DeleteRequest": {"Key": ` + cool + `}}]}%s}`,
			"[" + capacity + "]", `{"UnprocessedItems": {}}`},
		{"TransactWriteItems", `{"TransactItems": [{"Delete": {"TableName": "delta", "Key": ` + hot + `}}]%s}`, "[" + capacity + "]", `{}`},
		{"ExecuteStatement", fmt.Sprintf(statement, "hot", "%s"), capacity, `{"Items": []}`},
		{"BatchExecuteStatement", `{"Statements": [` + fmt.Sprintf(statement, "hot", "") + `, ` + fmt.Sprintf(statement, "cool", "") + `]%s}`,
			"[" + capacity + "]", `{"Responses": [{"TableName": "delta"}, {"TableName": "delta"}]}`},
	} {
		for _, asked := range [...]string{"", `, "ReturnConsumedCapacity": "NONE"`, `, "ReturnConsumedCapacity": "TOTAL"`} {
			w := startWorld(t, options{partitions: 2, isNew: true, parameters: slowPartitions(t)})
			w.engine.answer = `{"ConsumedCapacity": ` + example.report + strings.Replace(", "+example.answer[1:], ", }", "}", 1)
			status, answer := w.call(example.operation, fmt.Sprintf(example.body, asked))
			if !strings.Contains(w.engine.requests[0], `"TOTAL"`) {
				t.Errorf("the engine was sent %s", w.engine.requests[0])
			}
			expected := example.answer
			if strings.Contains(asked, "TOTAL") {
				expected = w.engine.answer
			}
			if status != http.StatusOK || compact(t, answer) != sorted(t, expected) {
				t.Errorf("%s%s: status %d, %v", example.operation, asked, status, answer)
			}
			if units := w.statistics().Services[dynamoDBService][example.operation].UnitsWritten; units != 800 {
				t.Errorf("%s%s: %v units", example.operation, asked, units)
			}
			for _, store := range [...]string{"hot", "cool"} {
				isThrottled := store == "hot" || strings.HasPrefix(example.operation, "Batch")
				if status, _ := w.call("PutItem", put(store, 1, "x")); (status != http.StatusOK) != isThrottled {
					t.Errorf("a put beside %s, into the store %s: status %d", example.operation, store, status)
				}
			}
		}
	}
}

func TestMembersAreReplacedAndRemoved(t *testing.T) {
	for text, expected := range map[string]struct{ replaced, removed string }{
		`{"x": [1], "y": 2}`:         {`{"x":3,"y":2}`, `{"y":2}`},
		`{"y": {"x": 1} , "x": "}"}`: {`{"y":{"x":1},"x":3}`, `{"y":{"x":1}}`},
		`{"w": 1, "x": 1 , "y": 2}`:  {`{"w":1,"x":3,"y":2}`, `{"w":1,"y":2}`},
		` { "x" : 1 } `:              {`{"x":3}`, `{}`},
		`{"y": "x"}`:                 {`{"x":3,"y":"x"}`, `{"y":"x"}`},
		`{}`:                         {`{"x":3}`, `{}`},
	} {
		replaced := bytes.Join(replaceMember([]byte(text), "x", []byte("3")), nil)
		if compact(t, string(replaced)) != expected.replaced {
			t.Errorf("%s with another member is %s", text, replaced)
		}
		if removed := withoutMember([]byte(text), "x"); compact(t, string(removed)) != expected.removed {
			t.Errorf("%s without the member is %s", text, removed)
		}
	}
}

func TestItemsAreMeasuredAsDynamoDBDoes(t *testing.T) {
	keys := schema{"store_shard", "part"}
	for text, bytes := range map[string]int{
		`{"a": {"S": "four"}}`:                             5,
		`{"a": {"B": "AAAAAA=="}}`:                         5,
		`{"a": {"N": "1234"}}`:                             4,
		`{"a": {"NULL": true}, "b": {"BOOL": false}}`:      4,
		`{"a": {"SS": ["x", "yz"]}}`:                       4,
		`{"a": {"L": [{"S": "x"}, {"S": "\"]}\\"}]}}`:      1 + 3 + 2 + 7,
		`{"a": {"M": {"b": {"S": "x"}, "c": {"L": []}}}}`:  1 + 3 + 3 + 5,
		`{"store_shard": {"S": "s#0"}, "part": {"S": ""}}`: 18,
	} {
		if measured := itemOf([]byte(text), keys); measured.bytes != bytes {
			t.Errorf("%s: %d bytes, not %d", text, measured.bytes, bytes)
		}
	}
	if key := itemOf([]byte(itemText("s", 7, "x")), keys); string(key.partitionKey) != "s#0" || string(key.sortKey) != "000007" {
		t.Errorf("the key is %s, %s", key.partitionKey, key.sortKey)
	}
}

// Broken text ends early: the engine refuses it.
func TestBrokenTextIsReadToItsEnd(t *testing.T) {
	whole := `{"RequestItems": {"delta": [{"PutRequest": {"Item": {"a": {"L": [{"S": "x"}, {"N": "1"}]}}}}]}}`
	for end := range whole {
		c := cursor{text: []byte(whole[:end])}
		if c.skip(); c.offset != end {
			t.Errorf("%s is read to %d, not to %d", c.text, c.offset, end)
		}
		for _, text := range []string{whole[:end], whole[:end] + "]" + whole[end:], whole[:end] + ",,"} {
			if size := itemOf([]byte(text), schema{}).bytes; size > len(text) {
				t.Errorf("%s is read as an item of %d bytes", text, size)
			}
		}
	}
}
