package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Counts of one operation, or of one request. A request is counted when it is answered.
type counts struct {
	Requests          int     `json:"requests"`
	NewConnections    int     `json:"new_connections"`
	BytesUp           int     `json:"bytes_up"`
	BytesDown         int     `json:"bytes_down"`
	WaitMs            float64 `json:"wait_ms"` // from a request's arrival to its answer
	Late              int     `json:"late"`    // requests whose engine took longer than the drawn latency
	LateMs            float64 `json:"late_ms"` // of wait_ms, what they waited beyond it
	ThrottledRequests int     `json:"throttled_requests"`
	ThrottledItems    int     `json:"throttled_items"`
	UnitsRead         float64 `json:"units_read"`
	UnitsWritten      float64 `json:"units_written"`
}

func (c *counts) addUnits(k kind, units float64) {
	if k == write {
		c.UnitsWritten += units
	} else {
		c.UnitsRead += units
	}
}

// addLate counts a wait for an engine after its answer was due, unless it is only the time to read the answer.
func (c *counts) addLate(wait time.Duration) {
	if wait >= time.Millisecond {
		c.Late++
		c.LateMs += inMilliseconds(wait)
	}
}

func (c *counts) add(other counts) {
	c.Requests += other.Requests
	c.NewConnections += other.NewConnections
	c.BytesUp += other.BytesUp
	c.BytesDown += other.BytesDown
	c.WaitMs += other.WaitMs
	c.Late += other.Late
	c.LateMs += other.LateMs
	c.ThrottledRequests += other.ThrottledRequests
	c.ThrottledItems += other.ThrottledItems
	c.UnitsRead += other.UnitsRead
	c.UnitsWritten += other.UnitsWritten
}

// Statistics are the counts by service and operation since they were reset, and the time of this process since then.
type statistics struct {
	mutex     sync.Mutex
	since     time.Time
	processor time.Duration // that this process had taken by then
	services  map[string]map[string]*counts
}

func newStatistics() *statistics {
	s := &statistics{}
	s.reset()
	return s
}

func (s *statistics) reset() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.since, s.processor = time.Now(), processorTime()
	s.services = map[string]map[string]*counts{dynamoDBService: {}, s3Service: {}, s3StateService: {}}
}

func (s *statistics) record(service, operation string, added counts) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	sum := s.services[service][operation]
	if sum == nil {
		sum = &counts{}
		s.services[service][operation] = sum
	}
	sum.add(added)
}

// processorTime returns what this process has taken of all processors, in user and in system mode.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it fails for wrong arguments only
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// control serves GET /statistics, GET /trace, POST /reset, and POST /scale?factor=NUMBER.
func control(s *statistics, t *trace, latency *scale, tables func() map[string]any) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/statistics", only(http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
		described := tables()
		s.mutex.Lock()
		defer s.mutex.Unlock()
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{
			"seconds":           time.Since(s.since).Seconds(),
			"processor_seconds": (processorTime() - s.processor).Seconds(),
			"services":          s.services,
			"tables":            described,
		})
	}))
	mux.HandleFunc("/trace", only(http.MethodGet, func(w http.ResponseWriter, _ *http.Request) { t.write(w) }))
	mux.HandleFunc("/reset", only(http.MethodPost, func(http.ResponseWriter, *http.Request) {
		s.reset()
		t.reset()
	}))
	mux.HandleFunc("/scale", only(http.MethodPost, func(w http.ResponseWriter, r *http.Request) {
		factor, err := strconv.ParseFloat(r.URL.Query().Get("factor"), 64)
		if err != nil || !(factor >= 0) {
			http.Error(w, "factor must be a number of at least 0", http.StatusBadRequest)
			return
		}
		latency.set(factor)
	}))
	return mux
}

func only(method string, serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method {
			http.Error(w, "this takes "+method+" only", http.StatusMethodNotAllowed)
			return
		}
		serve(w, r)
	}
}
