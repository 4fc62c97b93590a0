package main

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// A trace has every request to DynamoDB since it was reset, in the order of the answers, unless it is off.
type trace struct {
	isOn     bool
	mutex    sync.Mutex
	since    time.Time
	requests []tracedRequest
}

type tracedRequest struct {
	Operation string      `json:"operation"`
	BeginMs   float64     `json:"begin_ms"`
	EndMs     float64     `json:"end_ms"`
	Status    int         `json:"status"`
	Keys      [][2]string `json:"keys"` // partition key and sort key of each item
}

func newTrace(isOn bool) *trace {
	t := &trace{isOn: isOn}
	t.reset()
	return t
}

func (t *trace) reset() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.since, t.requests = time.Now(), []tracedRequest{}
}

// add adds a request that is answered now.
func (t *trace) add(arrival time.Time, operation string, status int, positions []position) {
	if !t.isOn {
		return
	}
	keys := [][2]string{}
	for _, position := range positions {
		keys = append(keys, [2]string{position.partition, position.sort})
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	begin, end := inMilliseconds(arrival.Sub(t.since)), inMilliseconds(time.Since(t.since))
	t.requests = append(t.requests, tracedRequest{operation, begin, end, status, keys})
}

func (t *trace) write(w http.ResponseWriter) {
	if !t.isOn {
		http.Error(w, "there is no trace; start the world with -trace", http.StatusNotFound)
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(t.requests)
}
