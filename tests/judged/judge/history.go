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
	corrupt       = "corrupt"
)

// A call of a client to a sidecar: a line of a history. Times are in nanoseconds of one clock.
type call struct {
	Client  int    `json:"client"`
	Begin   int64  `json:"begin"`
	End     int64  `json:"end"`
	Op      string `json:"op"`
	Store   string `json:"store"`
	Version int    `json:"version"`
	// Of a commit its own attempt; of an open the attempt that it names, or ""; of others the one that they are about.
	Attempt string `json:"attempt"`
	Outcome string `json:"outcome"`
	Error   string `json:"error"`

	// Of a commit: the number of its run, its parent ("": version 0), and what it puts (null: removes).
	Run     int                `json:"run"`
	Parent  string             `json:"parent"`
	Changes map[string]*string `json:"changes"`

	// Of a clean-up: how many versions up to its own it retains.
	Retain int `json:"retain"`

	// Of an open: the attempt and the rows that were found.
	Found string            `json:"found"`
	Rows  map[string]string `json:"rows"`

	// Of a fork: the store that it copies at its Version; Attempt is what it was found to have there. Of a commit and a
	// drop: how many drops of the store came before.
	Origin string `json:"origin"`
	Life   int    `json:"life"`

	// Of a view of an operator, which is its Store: the attempt that it shows of each partition.
	Shown map[string]string `json:"shown"`

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
	case c.Op == "clean-up":
		subject += fmt.Sprintf(" run %d, retaining %d", c.Run, c.Retain)
	case c.Op == "fork":
		subject += " of " + c.Origin
	case c.Op == "adopt":
		subject += fmt.Sprintf(" for run %d", c.Run)
	case c.Op == "view":
		for store, attempt := range c.Shown {
			subject += fmt.Sprintf(" %s/%s", store, short(attempt))
		}
	case c.Op == "commit":
		subject += fmt.Sprintf(" run %d on %s", c.Run, or(short(c.Parent), "nothing"))
	case c.Op == "open" && c.Outcome == ok:
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

// mayAppend says whether the attempt of a commit or a fork may become a version by this call.
func (c *call) mayAppend() bool {
	switch c.Op {
	case "commit":
		return c.Outcome == ok || c.Outcome == unknown || c.Outcome == noAnswer
	case "fork":
		return c.Outcome == ok || c.Outcome == unknown
	}
	return false
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

// attempts are the commits of a history by store and attempt, and the forks. The run of an attempt, and its rows, are a
// function of it.
type attempts map[[2]string]*call

func attemptsOf(calls []*call) (attempts, error) {
	made := attempts{}
	for _, one := range calls {
		if one.Op != "commit" && !(one.Op == "fork" && one.mayAppend()) {
			continue
		}
		if one.Attempt == "" || made[[2]string{one.Store, one.Attempt}] != nil {
			return nil, fmt.Errorf("attempt %q of store %s is made twice, or has no id", one.Attempt, one.Store)
		}
		made[[2]string{one.Store, one.Attempt}] = one
	}
	return made, nil
}

// forkedBelow are the versions below those of forks, which a fork may have, too: ancestors of what it has. Each is a fork
// of its own, of unknown outcome.
func forkedBelow(calls []*call) []*call {
	made := map[[2]string]*call{}
	for _, one := range calls {
		if one.Op == "commit" {
			made[[2]string{one.Store, one.Attempt}] = one
		}
	}
	var below []*call
	for _, fork := range calls {
		if fork.Op != "fork" || fork.Outcome != ok {
			continue
		}
		isAdded := map[string]bool{}
		for key, of := range made {
			if key[0] != fork.Origin || of.Version != fork.Version {
				continue
			}
			for one := made[[2]string{fork.Origin, of.Parent}]; one != nil && !isAdded[one.Attempt]; {
				isAdded[one.Attempt] = true
				ancestor := *fork
				ancestor.Version, ancestor.Attempt, ancestor.Parent = one.Version, one.Attempt, one.Parent
				ancestor.Outcome, ancestor.End = unknown, math.MaxInt64
				below = append(below, &ancestor)
				one = made[[2]string{fork.Origin, one.Parent}]
			}
			if key[1] == fork.Attempt {
				fork.Parent = of.Parent
			}
		}
	}
	return below
}

func (a attempts) of(store, attempt string) *call { return a[[2]string{store, attempt}] }

// rows are what an attempt consists of: those of its parent, and its changes; in a fork those of its origin. Nil: one of
// them was never made.
func (a attempts) rows(store, attempt string) map[string]string {
	made := a.of(store, attempt)
	if made == nil {
		return nil
	}
	if made.Op == "fork" {
		return a.rows(made.Origin, attempt)
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
		if one.Op != "commit" {
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
		if one.Outcome == ok {
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

// facts are what is known of a history whatever the order of its calls.
type facts struct {
	made     attempts
	runs     map[string]map[int]firsts
	cleanUps map[string][]*call
	drops    map[string][]*call
	adopts   map[string][]*call
}

// prepare notes what is wrong in calls whatever their order. It refuses a history whose runs did not enter each store in
// the order of their numbers: from it the judge could not tell which run is the newest.
func prepare(calls []*call) (*facts, error) {
	made, err := attemptsOf(calls)
	if err != nil {
		return nil, err
	}
	known := &facts{made, firstsOf(calls), map[string][]*call{}, map[string][]*call{}, map[string][]*call{}}
	for store, runs := range known.runs {
		for run, first := range runs {
			if before, isThere := runs[run-1]; run > 1 && (!isThere || before.returned >= first.called) {
				return nil, fmt.Errorf("store %s: run %d began before a commit of run %d had returned", store, run, run-1)
			}
		}
	}
	for _, one := range calls {
		switch one.Op {
		case "drop":
			known.drops[one.Store] = append(known.drops[one.Store], one)
		case "adopt":
			known.adopts[one.Store] = append(known.adopts[one.Store], one)
		}
	}
	for _, one := range calls {
		// A clean-up of a run that a newer one, or an adoption, had replaced deletes nothing.
		newer, isThere := known.runs[one.Store][one.Run+1]
		if one.Op == "clean-up" && !(isThere && newer.returned < one.Begin) && !known.isAdopted(one, one.Begin) {
			known.cleanUps[one.Store] = append(known.cleanUps[one.Store], one)
		}
	}
	for _, one := range calls {
		one.wrong = known.wrong(one)
	}
	return known, nil
}

// isAdopted says whether an adoption that returned before a time refuses the run of a call.
func (f *facts) isAdopted(by *call, time int64) bool {
	for _, adopt := range f.adopts[by.Store] {
		if adopt.Outcome == ok && by.Run < adopt.Run && adopt.End < time {
			return true
		}
	}
	return false
}

// mayBeDropped says whether a drop of a life of a store began before the end of a call.
func (f *facts) mayBeDropped(life int, by *call) bool {
	for _, drop := range f.drops[by.Store] {
		if life <= drop.Life && drop.Begin < by.End {
			return true
		}
	}
	return false
}

// mayRefuse says whether a newer run, an adoption or a drop that began before the end of a commit may refuse it.
func (f *facts) mayRefuse(c *call) bool {
	if newer, isThere := f.runs[c.Store][c.Run+1]; isThere && newer.called < c.End {
		return true
	}
	for _, adopt := range f.adopts[c.Store] {
		if c.Run < adopt.Run && adopt.Begin < c.End {
			return true
		}
	}
	return f.mayBeDropped(c.Life, c)
}

// mayBeGone says whether a drop or a clean-up that began before the end of a call may have deleted what an attempt
// consists of. A clean-up retains the last versions on its own lineage, and what branched off from these.
func (f *facts) mayBeGone(attempt string, by *call) bool {
	if made := f.made.of(by.Store, attempt); made != nil && f.mayBeDropped(made.Life, by) {
		return true
	}
	for _, cleanUp := range f.cleanUps[by.Store] {
		if cleanUp.Begin < by.End && !f.retains(cleanUp, attempt) {
			return true
		}
	}
	return false
}

func (f *facts) retains(cleanUp *call, attempt string) bool {
	oldest := cleanUp.Version - cleanUp.Retain + 1
	if oldest <= 1 {
		return true
	}
	lineage := map[string]bool{}
	for one := f.made.of(cleanUp.Store, cleanUp.Attempt); one != nil && one.Version >= oldest-1; {
		lineage[one.Attempt] = true
		one = f.made.of(cleanUp.Store, one.Parent)
	}
	one := f.made.of(cleanUp.Store, attempt)
	if one == nil || one.Version < oldest {
		return false
	}
	for one != nil && !lineage[one.Attempt] {
		one = f.made.of(cleanUp.Store, one.Parent)
	}
	return one != nil
}

func (f *facts) wrong(c *call) string {
	parent := f.made.of(c.Store, c.Parent)
	switch {
	case c.Op == "view" && c.Outcome != unavailable:
		return f.wrongView(c)
	case c.Outcome == noAnswer || c.Outcome == aborted || c.Outcome == unavailable:
		return ""
	case c.Outcome == ok && c.Op == "open":
		return c.wrongRows(f.made)
	case c.Outcome == ok && c.Op == "fork" && f.made.rows(c.Store, c.Attempt) == nil:
		return "it has what its origin never had"
	case c.Outcome == ok && c.Op == "commit" && c.Parent != "" && (parent == nil || parent.Run > c.Run):
		return "its parent is of a newer run, or was never made"
	case c.Outcome == ok, c.Outcome == unknown && c.mayAppend():
		return ""
	case c.Outcome == missing && (c.Op == "open" || c.Op == "fork"): // of a fork: the partitions have no version in common yet
		return ""
	case c.Outcome == corrupt && c.Op == "open" && c.Attempt == "":
		return ""
	case (c.Outcome == corrupt || c.Outcome == missing) && c.Op != "commit" && f.mayBeGone(c.Attempt, c):
		return ""
	case c.Outcome == configuration && c.Op == "commit":
		if f.mayRefuse(c) || (c.Parent != "" && f.mayBeGone(c.Parent, c)) {
			return ""
		}
		return "refused without a newer run: " + c.Error
	}
	return c.Outcome + ": " + c.Error
}

// wrongView says what is wrong in a view of all partitions of an operator: they have to be at one version, by one run. A
// view shows the newest version that the newest run had made in all of them before it began, or a later one.
func (f *facts) wrongView(c *call) string {
	newest := 0
	made := map[string]map[int]bool{}
	var stores []string
	for store, runs := range f.runs {
		if !strings.HasPrefix(store, c.Store+"/") {
			continue
		}
		stores = append(stores, store)
		for run, first := range runs {
			if first.called < c.End && run > newest {
				newest = run
			}
		}
	}
	hasBegun := len(stores) > 0
	for _, store := range stores {
		made[store] = map[int]bool{}
		hasStore := false
		for key, one := range f.made {
			if key[0] == store && one.Outcome == ok && one.End < c.Begin {
				hasStore = true
				made[store][one.Version] = made[store][one.Version] || one.Run == newest
			}
		}
		hasBegun = hasBegun && hasStore
	}
	switch {
	case c.Outcome != ok && hasBegun:
		return c.Outcome + ": " + c.Error
	case c.Outcome != ok:
		return ""
	case hasBegun && len(c.Shown) != len(stores):
		return "a partition is not shown"
	}
	run := 0
	for store, attempt := range c.Shown {
		one := f.made.of(store, attempt)
		if one == nil || !one.mayAppend() || one.Begin > c.End || one.Version != c.Version {
			return "it shows a version of " + store + " that was not made"
		}
		if run != 0 && run != one.Run {
			return "it shows versions of two runs"
		}
		run = one.Run
	}
	for version := range made[stores[0]] {
		isWhole := true
		for _, store := range stores {
			isWhole = isWhole && made[store][version]
		}
		if isWhole && (run != newest || c.Version < version) {
			return fmt.Sprintf("it goes back: run %d had made version %d", newest, version)
		}
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
