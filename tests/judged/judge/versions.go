package main

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// timeout is far more than a list of a history takes.
const timeout = 60 * time.Second

// A version of a store is a register of attempts: a commit appends its attempt, once; an open of an attempt finds it
// exactly if it is in the register; an open of the number finds the last one of those by the newest run. What a clean-up
// or a drop may have deleted may be there or not. A fork appends to a register of its own what the number of its origin
// opens. A drop empties the registers of its store, and ends its life: nothing is appended for an earlier life. By its
// name an attempt may be found after a drop, since a sidecar may have it in memory. After an adoption nothing is appended
// for earlier runs.
type register struct {
	life, adopted int
	// The attempts, in order, each with a space after it; and those that were dropped.
	list, dropped string
}

func (r register) has(attempt string) bool { return strings.Contains(r.list, attempt+" ") }

func (r register) had(attempt string) bool { return strings.Contains(r.dropped, attempt+" ") }

// takes says whether an attempt may be appended.
func (r register) takes(one *call) bool { return one.Life == r.life && one.Run >= r.adopted }

func versionModel(known *facts) porcupine.Model {
	return porcupine.Model{
		Partition: partition,
		Init:      func() interface{} { return register{} },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			now, one := state.(register), input.(*call)
			switch {
			case one.wrong != "":
				return false, now
			case one.Op == "drop" && one.Outcome == ok:
				return true, register{one.Life + 1, now.adopted, "", now.dropped + now.list}
			case one.Op == "adopt" && one.Outcome == ok:
				return true, register{now.life, one.Run, now.list, now.dropped}
			case one.mayAppend() && !now.takes(one):
				return one.Outcome != ok, now
			case one.mayAppend() && !now.has(one.Attempt):
				return true, register{now.life, now.adopted, now.list + one.Attempt + " ", now.dropped}
			case one.Op == forked:
				return known.numberForks(now.list, one), now
			case one.Op != "open":
				return true, now
			case one.Attempt == "":
				return known.numberOpens(now.list, one), now
			case one.Outcome == ok:
				return now.has(one.Attempt) || now.had(one.Attempt), now
			default:
				return !now.has(one.Attempt) || known.mayBeGone(one.Attempt, one), now
			}
		},
		DescribeOperation: func(input, _ interface{}) string { return input.(*call).String() },
		DescribeState:     func(state interface{}) string { return describe(state.(register).list) },
	}
}

// numberForks says whether a fork may have found an attempt by its number while these attempts are listed. It leaves out
// what runs have made that began after it.
func (f *facts) numberForks(list string, by *call) bool {
	run, newest := f.made.of(by.Store, by.Found).Run, ""
	for _, attempt := range strings.Fields(list) {
		isCounted := attempt == by.Found || !f.mayBeGone(attempt, by)
		made := f.made.of(by.Store, attempt)
		if isCounted && made.Run <= run && (newest == "" || made.Run >= f.made.of(by.Store, newest).Run) {
			newest = attempt
		}
	}
	return newest == by.Found
}

// numberOpens says whether a number may open what a call found, or nothing, while these attempts are listed.
func (f *facts) numberOpens(list string, by *call) bool {
	newest, isListed, canBeGone, mustBeThere := "", false, false, false
	for _, attempt := range strings.Fields(list) {
		mayBeGone := f.mayBeGone(attempt, by)
		canBeGone = canBeGone || mayBeGone
		mustBeThere = mustBeThere || !mayBeGone
		isListed = isListed || attempt == by.Found
		isCounted := attempt == by.Found || !mayBeGone
		if isCounted && (newest == "" || f.made.of(by.Store, attempt).Run >= f.made.of(by.Store, newest).Run) {
			newest = attempt
		}
	}
	switch by.Outcome {
	case ok:
		return isListed && newest == by.Found
	case missing:
		return !mustBeThere
	default: // it is corrupt
		return canBeGone
	}
}

func describe(list string) string {
	var texts []string
	for _, attempt := range strings.Fields(list) {
		texts = append(texts, short(attempt))
	}
	return fmt.Sprint(texts)
}

// partition gives the operations on each version of each store. A drop and an adoption are on all versions of theirs.
func partition(history []porcupine.Operation) [][]porcupine.Operation {
	var keys []string
	parts := map[string][]porcupine.Operation{}
	ofStores := map[string][]porcupine.Operation{}
	for _, operation := range history {
		one := operation.Input.(*call)
		if one.Op == "drop" || one.Op == "adopt" {
			ofStores[one.Store] = append(ofStores[one.Store], operation)
			continue
		}
		key := fmt.Sprintf("%s %09d", one.Store, one.Version)
		if parts[key] == nil {
			keys = append(keys, key)
		}
		parts[key] = append(parts[key], operation)
	}
	sort.Strings(keys)
	var ordered [][]porcupine.Operation
	for _, key := range keys {
		store, _, _ := strings.Cut(key, " ")
		ordered = append(ordered, append(parts[key], ofStores[store]...))
	}
	return ordered
}

// forked is what a fork says about its origin: what its number opens there.
const forked = "forked"

// operations are the calls that say something about a version.
func operations(calls []*call) []porcupine.Operation {
	var all []porcupine.Operation
	for _, one := range calls {
		if one.Op == "fork" && one.Outcome == ok && one.wrong == "" {
			of := &call{Op: forked, Store: one.Origin, Version: one.Version, Found: one.Attempt, Outcome: ok, Begin: one.Begin, End: one.End}
			all = append(all, porcupine.Operation{ClientId: one.Client, Input: of, Call: one.Begin, Return: one.End})
		}
		saysNothing := (one.Op == "open" || one.Op == "view") && (one.Outcome == noAnswer || one.Outcome == unavailable)
		if !saysNothing {
			all = append(all, porcupine.Operation{ClientId: one.Client, Input: one, Call: one.Begin, Return: one.End})
		}
	}
	return all
}

// A conviction is calls of one version that no order explains, as few as could be found.
type conviction struct {
	calls []*call
	model porcupine.Model
	info  porcupine.LinearizationInfo
}

// judge checks a history, and gives the number of versions that it is about, and those that nothing explains.
func judge(calls []*call) (int, []conviction, error) {
	calls = append(append([]*call{}, calls...), forkedBelow(calls)...)
	known, err := prepare(calls)
	if err != nil {
		return 0, nil, err
	}
	model := versionModel(known)
	var convictions []conviction
	versions := partition(operations(calls))
	for _, version := range versions {
		switch porcupine.CheckOperationsTimeout(model, version, timeout) {
		case porcupine.Unknown:
			one := version[0].Input.(*call)
			return 0, nil, fmt.Errorf("%s %d: no verdict within %s", one.Store, one.Version, timeout)
		case porcupine.Illegal:
			version = renumber(shrink(model, version))
			_, info := porcupine.CheckOperationsVerbose(model, version, timeout)
			convicted := conviction{model: model, info: info}
			for _, operation := range version {
				convicted.calls = append(convicted.calls, operation.Input.(*call))
			}
			convictions = append(convictions, convicted)
		}
	}
	return len(versions), convictions, nil
}

// shrink leaves out calls while no order explains the rest. A commit stays as long as a call finds its attempt.
func shrink(model porcupine.Model, history []porcupine.Operation) []porcupine.Operation {
	for i := len(history) - 1; i >= 0; i-- {
		rest := append(append([]porcupine.Operation{}, history[:i]...), history[i+1:]...)
		one := history[i].Input.(*call)
		if one.mayAppend() && isFound(one.Attempt, rest) {
			continue
		}
		if porcupine.CheckOperationsTimeout(model, rest, timeout) == porcupine.Illegal {
			history = rest
		}
	}
	return history
}

// renumber gives the clients of a few calls the lowest numbers: the picture has a line for each.
func renumber(history []porcupine.Operation) []porcupine.Operation {
	numbers := map[int]int{}
	for i, operation := range history {
		if _, isThere := numbers[operation.ClientId]; !isThere {
			numbers[operation.ClientId] = len(numbers)
		}
		history[i].ClientId = numbers[operation.ClientId]
	}
	return history
}

func isFound(attempt string, history []porcupine.Operation) bool {
	for _, operation := range history {
		if operation.Input.(*call).Found == attempt {
			return true
		}
	}
	return false
}
