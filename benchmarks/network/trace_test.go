package main

import (
	"encoding/json"
	"net/http"
	"reflect"
	"testing"
)

func (w *testWorld) trace() (int, []tracedRequest) {
	w.Helper()
	response, err := http.Get(w.urls["control"] + "/trace")
	if err != nil {
		w.Fatal(err)
	}
	defer response.Body.Close()
	var requests []tracedRequest
	if response.StatusCode == http.StatusOK {
		if err := json.NewDecoder(response.Body).Decode(&requests); err != nil {
			w.Fatal(err)
		}
	}
	return response.StatusCode, requests
}

func TestTraceHasEveryRequestUntilItIsReset(t *testing.T) {
	w := startWorld(t, options{isTraced: true, scale: 1})
	first, second := itemText("s", 1, "x"), itemText("t", 2, "x")
	w.call("BatchWriteItem", `{"RequestItems": {"delta": [{"PutRequest": {"Item": `+first+`}}, {"PutRequest": {"Item": `+second+`}}]}}`)
	w.call("PutItem", put("s", 3, "x"))
	_, requests := w.trace()
	if len(requests) != 2 {
		t.Fatalf("the trace has %+v", requests)
	}
	batch, single := requests[0], requests[1]
	keys := [][2]string{{"s#0", "000001"}, {"t#0", "000002"}}
	if batch.Operation != "BatchWriteItem" || batch.Status != http.StatusOK || !reflect.DeepEqual(batch.Keys, keys) {
		t.Errorf("a batch is traced as %+v", batch)
	}
	if !(0 <= batch.BeginMs && batch.BeginMs+7 <= batch.EndMs && batch.EndMs <= single.BeginMs) {
		t.Errorf("two requests, one after the other, are traced as %+v", requests)
	}
	http.Post(w.urls["control"]+"/reset", "", nil)
	if _, requests := w.trace(); len(requests) != 0 {
		t.Errorf("after a reset the trace has %+v", requests)
	}
}

func TestWorldWithoutTraceSaysSo(t *testing.T) {
	w := startWorld(t, options{})
	if status, _ := w.trace(); status != http.StatusNotFound {
		t.Errorf("status %d", status)
	}
}
