package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
)

// What calls end with, as the harness writes them: the kinds of errors of docs/protocol.md, and three more.
const (
	ok            = "ok"
	noAnswer      = "no answer"
	aborted       = "aborted"
	configuration = "configuration"
	unavailable   = "unavailable"
	unknown       = "unknown"
	missing       = "missing"
)

// A call of a client to a sidecar: a line of a history. Times are in nanoseconds of one clock.
type call struct {
	Client  int    `json:"client"`
	Begin   int64  `json:"begin"`
	End     int64  `json:"end"`
	Op      string `json:"op"`
	Store   string `json:"store"`
	Version int    `json:"version"`
	// Of a commit its own attempt; of an open the attempt that it names, or "".
	Attempt string `json:"attempt"`
	Outcome string `json:"outcome"`
	Error   string `json:"error"`

	// Of a commit: the number of its run, its parent ("": version 0), and what it puts (null: removes).
	Run     int                `json:"run"`
	Parent  string             `json:"parent"`
	Changes map[string]*string `json:"changes"`

	// Of an open: the attempt and the rows that were found.
	Found string            `json:"found"`
	Rows  map[string]string `json:"rows"`

	// Why no order of the calls explains this one; "": an order may.
	wrong string
}

func (c *call) String() string {
	subject := fmt.Sprintf("%s %d", c.Store, c.Version)
	if c.Attempt != "" {
		subject += "/" + short(c.Attempt)
	}
	result := c.Outcome
	switch {
	case c.Op != "open":
		subject += fmt.Sprintf(" run %d on %s", c.Run, or(short(c.Parent), "nothing"))
	case c.Outcome == ok:
		result = fmt.Sprintf("%s, %d rows", short(c.Found), len(c.Rows))
	}
	if c.wrong != "" {
		result += " (" + c.wrong + ")"
	} else if c.Error != "" {
		result += " (" + c.Error + ")"
	}
	return fmt.Sprintf("%s %s -> %s", c.Op, subject, result)
}

// short is an attempt for people: its first digits.
func short(attempt string) string {
	if len(attempt) > 8 {
		return attempt[:8]
	}
	return attempt
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// mayAppend says whether the attempt of a commit may become a version by this call.
func (c *call) mayAppend() bool {
	return c.Op == "commit" && (c.Outcome == ok || c.Outcome == unknown || c.Outcome == noAnswer)
}

// read reads a history: JSON, one call a line.
func read(from io.Reader) ([]*call, error) {
	var calls []*call
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		one := &call{}
		if err := json.Unmarshal(lines.Bytes(), one); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(calls)+1, err)
		}
		if one.Begin >= one.End {
			return nil, fmt.Errorf("line %d: it ends before it begins", len(calls)+1)
		}
		if one.mayAppend() && one.Outcome != ok {
			one.End = math.MaxInt64 // its append may be late
		}
		calls = append(calls, one)
	}
	sort.SliceStable(calls, func(i, j int) bool { return calls[i].Begin < calls[j].Begin })
	return calls, lines.Err()
}

// attempts are the commits of a history by store and attempt. The run of an attempt, and its rows, are a function of it.
type attempts map[[2]string]*call

func attemptsOf(calls []*call) (attempts, error) {
	made := attempts{}
	for _, one := range calls {
		if one.Op == "open" {
			continue
		}
		if one.Attempt == "" || made[[2]string{one.Store, one.Attempt}] != nil {
			return nil, fmt.Errorf("attempt %q of store %s is made twice, or has no id", one.Attempt, one.Store)
		}
		made[[2]string{one.Store, one.Attempt}] = one
	}
	return made, nil
}

func (a attempts) of(store, attempt string) *call { return a[[2]string{store, attempt}] }

// rows are what an attempt consists of: those of its parent, and its changes. Nil: one of them was never made.
func (a attempts) rows(store, attempt string) map[string]string {
	made := a.of(store, attempt)
	if made == nil {
		return nil
	}
	rows := map[string]string{}
	if made.Parent != "" {
		parent := a.of(store, made.Parent)
		if parent == nil || parent.Version != made.Version-1 {
			return nil
		}
		if rows = a.rows(store, made.Parent); rows == nil {
			return nil
		}
	}
	for key, value := range made.Changes {
		if value == nil {
			delete(rows, key)
		} else {
			rows[key] = *value
		}
	}
	return rows
}

// firsts are the first time at which a run called a commit of a store, and at which a commit of it had returned.
type firsts struct{ called, returned int64 }

func firstsOf(calls []*call) map[string]map[int]firsts {
	stores := map[string]map[int]firsts{}
	for _, one := range calls {
		if one.Op == "open" {
			continue
		}
		runs := stores[one.Store]
		if runs == nil {
			runs = map[int]firsts{}
			stores[one.Store] = runs
		}
		first, isThere := runs[one.Run]
		if !isThere {
			first = firsts{math.MaxInt64, math.MaxInt64}
		}
		first.called = min(first.called, one.Begin)
		if one.Op == "commit" && one.Outcome == ok {
			first.returned = min(first.returned, one.End)
		}
		runs[one.Run] = first
	}
	return stores
}

func min(one, other int64) int64 {
	if one < other {
		return one
	}
	return other
}

// prepare notes what is wrong in calls whatever their order. It refuses a history whose runs did not enter each store in
// the order of their numbers: from it the judge could not tell which run is the newest.
func prepare(calls []*call) (attempts, error) {
	made, err := attemptsOf(calls)
	if err != nil {
		return nil, err
	}
	stores := firstsOf(calls)
	for store, runs := range stores {
		for run, first := range runs {
			if before, isThere := runs[run-1]; run > 1 && (!isThere || before.returned >= first.called) {
				return nil, fmt.Errorf("store %s: run %d began before a commit of run %d had returned", store, run, run-1)
			}
		}
	}
	for _, one := range calls {
		one.wrong = one.wrongOf(made, stores[one.Store])
	}
	return made, nil
}

func (c *call) wrongOf(made attempts, runs map[int]firsts) string {
	switch c.Outcome {
	case ok:
		if c.Op == "open" {
			return c.wrongRows(made)
		}
		if parent := made.of(c.Store, c.Parent); c.Parent != "" && (parent == nil || parent.Run > c.Run) {
			return "its parent is of a newer run, or was never made"
		}
	case configuration:
		if newer, isThere := runs[c.Run+1]; c.Op == "open" || !isThere || newer.called > c.End {
			return "refused without a newer run: " + c.Error
		}
	case noAnswer, aborted, unavailable, unknown:
	case missing:
		if c.Op != "open" {
			return "a commit needs no version: " + c.Error
		}
	default:
		return c.Outcome + ": " + c.Error
	}
	return ""
}

func (c *call) wrongRows(made attempts) string {
	found := made.of(c.Store, c.Found)
	if found == nil || found.Version != c.Version {
		return "this version was never made"
	}
	if c.Attempt != "" && c.Attempt != c.Found {
		return "another attempt than the one that is named"
	}
	expected := made.rows(c.Store, c.Found)
	if expected == nil {
		return "a version above one that was never made"
	}
	var keys []string
	for key, value := range expected {
		if got, isThere := c.Rows[key]; !isThere || got != value {
			keys = append(keys, key)
		}
	}
	for key := range c.Rows {
		if _, isThere := expected[key]; !isThere {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	if len(keys) > 0 {
		return "wrong rows: " + strings.Join(keys, " ")
	}
	return ""
}
