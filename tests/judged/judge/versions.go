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
// may have deleted may be there or not.
// The state of the register is the attempts, in order, each with a space after it.
func versionModel(known *facts) porcupine.Model {
	return porcupine.Model{
		Partition: partition,
		Init:      func() interface{} { return "" },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			list, one := state.(string), input.(*call)
			isListed := strings.Contains(list, one.Attempt+" ")
			switch {
			case one.wrong != "":
				return false, list
			case one.mayAppend() && !isListed:
				return true, list + one.Attempt + " "
			case one.Op != "open":
				return true, list
			case one.Attempt == "":
				return known.numberOpens(list, one), list
			case one.Outcome == ok:
				return isListed, list
			default:
				return !isListed || known.mayBeGone(one.Attempt, one), list
			}
		},
		DescribeOperation: func(input, _ interface{}) string { return input.(*call).String() },
		DescribeState:     func(state interface{}) string { return describe(state.(string)) },
	}
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

func partition(history []porcupine.Operation) [][]porcupine.Operation {
	var keys []string
	parts := map[string][]porcupine.Operation{}
	for _, operation := range history {
		one := operation.Input.(*call)
		key := fmt.Sprintf("%s %09d", one.Store, one.Version)
		if parts[key] == nil {
			keys = append(keys, key)
		}
		parts[key] = append(parts[key], operation)
	}
	sort.Strings(keys)
	var ordered [][]porcupine.Operation
	for _, key := range keys {
		ordered = append(ordered, parts[key])
	}
	return ordered
}

// operations are the calls that say something about a version.
func operations(calls []*call) []porcupine.Operation {
	var all []porcupine.Operation
	for _, one := range calls {
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
