package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// commit is a call by which a run makes version 1 of a store with one row, whose value is the attempt.
func commit(run int, attempt, outcome string, begin, end int64) *call {
	row := map[string]*string{"row": &attempt}
	return &call{Op: "commit", Store: "s", Version: 1, Run: run, Attempt: attempt, Changes: row, Outcome: outcome, Begin: begin, End: end}
}

// child is a commit of version 2.
func child(run int, attempt, parent string, begin, end int64) *call {
	one := commit(run, attempt, ok, begin, end)
	one.Version, one.Parent = 2, parent
	return one
}

// open is a call that finds an attempt of version 1, or none if found is ""; named is the attempt that it names.
func open(named, found string, begin, end int64) *call {
	one := &call{Op: "open", Store: "s", Version: 1, Attempt: named, Outcome: missing, Begin: begin, End: end}
	if found != "" {
		one.Outcome, one.Found, one.Rows = ok, found, map[string]string{"row": found}
	}
	return one
}

// chain is four versions: 1/a, 2/b, 3/c and 4/d, and 2/z, which is of no later version's lineage.
func chain() []*call {
	calls := []*call{commit(1, "a", ok, 1, 2), at(2, "a", commit(1, "z", ok, 3, 4)), at(2, "a", commit(1, "b", ok, 5, 6))}
	return append(calls, at(3, "b", commit(1, "c", ok, 7, 8)), at(4, "c", commit(1, "d", ok, 9, 10)))
}

func at(version int, parent string, one *call) *call {
	one.Version, one.Parent = version, parent
	return one
}

// cleanUp is a call behind 4/d.
func cleanUp(run, retain int, begin, end int64) *call {
	return &call{Op: "clean-up", Store: "s", Version: 4, Attempt: "d", Run: run, Retain: retain, Outcome: ok, Begin: begin, End: end}
}

// batch is version 1 of both partitions of operator o: attempts p of o/0 and q of o/1.
func batch(run int, p, q string, begin, end int64) []*call {
	calls := []*call{commit(run, p, ok, begin, end), commit(run, q, ok, begin, end)}
	calls[0].Store, calls[1].Store = "o/0", "o/1"
	return calls
}

// view is a view of operator o at version 1 with these attempts of its partitions; "": it has no such partition.
func view(p, q string, begin, end int64) *call {
	one := &call{Op: "view", Store: "o", Version: 1, Outcome: ok, Shown: map[string]string{}, Begin: begin, End: end}
	for store, attempt := range map[string]string{"o/0": p, "o/1": q} {
		if attempt != "" {
			one.Shown[store] = attempt
		}
	}
	return one
}

// forkOf is a call by which store f has attempt a of version 1 of store s.
func forkOf(a string, begin, end int64) *call {
	return &call{Op: "fork", Store: "f", Origin: "s", Version: 1, Attempt: a, Outcome: ok, Begin: begin, End: end}
}

// drop is a call that ends the first life of store f.
func drop(begin, end int64) *call {
	return &call{Op: "drop", Store: "f", Outcome: ok, Begin: begin, End: end}
}

// adopt is a call that lets only run 2 and later ones write to store s.
func adopt(begin, end int64) *call {
	return &call{Op: "adopt", Store: "s", Run: 2, Outcome: ok, Begin: begin, End: end}
}

// in is a call on store f, in its first life or in a later one.
func in(life int, one *call) *call {
	one.Store, one.Life = "f", life
	return one
}

func failed(outcome string, one *call) *call {
	one.Outcome, one.Error = outcome, "because"
	return one
}

func withRows(rows map[string]string, one *call) *call {
	one.Rows = rows
	return one
}

// write writes a history to a new file.
func write(t *testing.T, calls []*call) string {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	var lines []string
	for _, one := range calls {
		line, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func verdict(t *testing.T, calls []*call) ([]conviction, error) {
	file, err := os.Open(write(t, calls))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	history, err := read(file)
	if err != nil {
		return nil, err
	}
	_, convictions, err := judge(history)
	return convictions, err
}

func TestHistoriesThatAreExplained(t *testing.T) {
	for name, calls := range map[string][]*call{
		"a version is there after its commit":     {open("", "", 1, 2), commit(1, "a", ok, 3, 4), open("", "a", 5, 6), open("a", "a", 5, 6)},
		"while it commits it may be there or not": {commit(1, "a", ok, 1, 9), open("", "", 2, 3), open("", "a", 4, 5)},
		"of twins the last one wins":              {commit(1, "a", ok, 1, 2), commit(1, "b", ok, 3, 4), open("", "b", 5, 6), open("a", "a", 5, 6)},
		"twins at once, in either order":          {commit(1, "a", ok, 1, 9), commit(1, "b", ok, 1, 9), open("", "a", 10, 11)},
		"a newer run wins over a late zombie":     {commit(1, "a", ok, 1, 2), commit(2, "b", ok, 3, 4), commit(1, "c", ok, 5, 6), open("", "b", 7, 8), open("c", "c", 7, 8)},
		"an unknown commit that never happened":   {commit(1, "a", unknown, 1, 2), open("", "", 3, 4), open("a", "", 3, 4)},
		"an unknown commit that came late":        {commit(1, "a", noAnswer, 1, 2), open("", "", 3, 4), open("", "a", 5, 6)},
		"a commit that failed, or was aborted":    {commit(1, "a", unavailable, 1, 2), commit(1, "b", aborted, 1, 2), open("a", "", 3, 4), open("b", "", 3, 4)},
		"a run that a newer one replaced":         {commit(1, "a", ok, 1, 2), commit(2, "b", ok, 3, 4), failed(configuration, commit(1, "c", ok, 5, 6))},
		"an open that failed says nothing":        {commit(1, "a", ok, 1, 2), failed(unavailable, open("", "", 3, 4)), failed(noAnswer, open("a", "", 3, 4))},
		"a version consists of its parent's rows": {commit(1, "a", ok, 1, 2), child(1, "b", "a", 3, 4), {Op: "open", Store: "s", Version: 2, Outcome: ok, Found: "b", Rows: map[string]string{"row": "b"}, Begin: 5, End: 6}},
		"a view is whole":                         append(batch(1, "a", "b", 1, 2), view("a", "b", 3, 4)),
		"while the first batch runs it may lack":  append(batch(1, "a", "b", 1, 9), view("a", "", 3, 4), failed(missing, view("", "", 5, 6))),
		"a view while another run begins":         append(append(batch(1, "a", "b", 1, 2), batch(2, "c", "d", 3, 9)...), view("a", "b", 5, 6), view("c", "d", 7, 8)),
		"clean-up deletes older versions":         append(chain(), cleanUp(1, 2, 11, 12), at(2, "", open("b", "", 13, 14)), at(2, "", failed("corrupt", open("", "", 13, 14)))),
		"while clean-up runs they may be there":   append(chain(), cleanUp(1, 2, 11, 20), at(2, "", open("b", "b", 13, 14)), at(2, "", open("", "b", 15, 16))),
		"a parent that clean-up has deleted":      append(chain(), cleanUp(1, 2, 11, 12), at(3, "z", failed(configuration, commit(1, "y", ok, 13, 14)))),
		"a fork reads as its origin":              {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), in(0, open("", "a", 5, 6)), in(0, open("a", "a", 7, 8))},
		"a fork while a run begins":               {commit(1, "a", ok, 1, 2), forkOf("a", 3, 9), commit(2, "b", ok, 4, 5), commit(1, "c", noAnswer, 6, 7), in(0, open("", "a", 10, 11))},
		"while it is made it may be there or not": {commit(1, "a", ok, 1, 2), forkOf("a", 3, 9), in(0, open("", "", 4, 5)), in(0, open("", "a", 6, 7))},
		"a fork without a common version":         {failed(missing, forkOf("", 1, 2)), commit(1, "a", ok, 3, 4)},
		"its origin cleans up":                    append(chain(), forkOf("a", 11, 12), cleanUp(1, 2, 13, 14), open("", "", 15, 16), in(0, open("", "a", 17, 18))),
		"a fork has versions below its own":       append(chain(), at(2, "", forkOf("b", 11, 12)), in(0, open("", "a", 13, 14)), in(0, open("a", "a", 15, 16))),
		"a fork has none below its own":           append(chain(), at(2, "", forkOf("b", 11, 12)), in(0, open("", "", 13, 14))),
		"a drop ends a fork":                      {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), drop(5, 6), in(0, open("", "", 7, 8)), in(0, open("a", "", 9, 10))},
		"a sidecar has what was dropped":          {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), drop(5, 6), in(0, open("a", "a", 7, 8))},
		"while a drop runs it may be corrupt":     {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), drop(5, 9), in(0, failed("corrupt", open("", "", 6, 7)))},
		"a drop that failed":                      {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), failed(unavailable, drop(5, 6)), in(0, open("", "", 7, 8)), in(0, open("a", "a", 9, 10))},
		"a query begins after a drop":             {in(0, commit(1, "a", ok, 1, 2)), drop(3, 4), in(0, open("", "", 5, 6)), in(1, commit(2, "b", ok, 7, 8)), in(0, open("", "b", 9, 10))},
		"a drop refuses what is late":             {in(0, commit(1, "a", ok, 1, 2)), in(0, commit(1, "b", noAnswer, 3, 4)), in(0, failed(configuration, commit(1, "c", ok, 5, 9))), drop(6, 8), in(0, open("b", "", 10, 11))},
		"an adoption refuses earlier runs":        {commit(1, "a", ok, 1, 2), adopt(3, 5), failed(configuration, commit(1, "b", ok, 4, 6)), commit(2, "c", ok, 7, 8), open("", "c", 9, 10)},
		"a commit beside an adoption":             {commit(1, "a", ok, 1, 5), adopt(2, 4), open("", "a", 6, 7)},
	} {
		convictions, err := verdict(t, calls)
		if err != nil || len(convictions) > 0 {
			t.Errorf("%s: %v %v", name, err, convictions)
		}
	}
}

func TestHistoriesThatNoOrderExplains(t *testing.T) {
	for name, calls := range map[string][]*call{
		"a commit that returned is lost":       {commit(1, "a", ok, 1, 2), open("", "", 3, 4)},
		"an attempt that returned is lost":     {commit(1, "a", ok, 1, 2), commit(1, "b", ok, 1, 2), open("a", "", 3, 4)},
		"a commit that failed is a version":    {commit(1, "a", unavailable, 1, 2), open("", "a", 3, 4)},
		"an aborted attempt is a version":      {commit(1, "a", aborted, 1, 2), open("a", "a", 3, 4)},
		"a version goes back":                  {commit(1, "a", unknown, 1, 2), open("", "a", 3, 4), open("", "", 5, 6)},
		"the first of twins wins":              {commit(1, "a", ok, 1, 2), commit(1, "b", ok, 3, 4), open("", "a", 5, 6)},
		"twins take turns":                     {commit(1, "a", ok, 1, 9), commit(1, "b", ok, 1, 9), open("", "a", 10, 11), open("", "b", 12, 13), open("", "a", 14, 15)},
		"a zombie wins over a newer run":       {commit(1, "a", ok, 1, 2), commit(2, "b", ok, 3, 4), commit(1, "c", ok, 5, 6), open("", "c", 7, 8)},
		"an attempt that nobody made":          {commit(1, "a", ok, 1, 2), open("", "z", 3, 4)},
		"another attempt than the named one":   {commit(1, "a", ok, 1, 2), commit(1, "b", ok, 1, 2), open("a", "b", 3, 4)},
		"a row is lost":                        {commit(1, "a", ok, 1, 2), withRows(map[string]string{}, open("", "a", 3, 4))},
		"a row is another one's":               {commit(1, "a", ok, 1, 2), withRows(map[string]string{"row": "b"}, open("", "a", 3, 4))},
		"a row is invented":                    {commit(1, "a", ok, 1, 2), withRows(map[string]string{"row": "a", "more": "b"}, open("", "a", 3, 4))},
		"a version that is corrupt":            {commit(1, "a", ok, 1, 2), failed("corrupt", open("", "", 3, 4))},
		"a run is refused, and none is newer":  {failed(configuration, commit(1, "a", ok, 1, 2))},
		"a run is refused before a newer one":  {commit(1, "a", ok, 1, 2), failed(configuration, commit(1, "b", ok, 3, 4)), commit(2, "c", ok, 5, 6)},
		"a version of a newer run is extended": {commit(1, "a", ok, 1, 2), commit(2, "b", ok, 3, 4), child(1, "c", "b", 5, 6)},
		"a version above one that never was":   {child(1, "b", "a", 3, 4)},
		"clean-up deletes a retained version":  append(chain(), cleanUp(1, 2, 11, 12), at(3, "", open("c", "", 13, 14))),
		"one is lost before clean-up begins":   append(chain(), at(2, "", open("b", "", 11, 12)), cleanUp(1, 2, 13, 14)),
		"what a retained one needs is deleted": append(chain(), cleanUp(1, 2, 11, 12), at(4, "", failed("corrupt", open("d", "", 13, 14)))),
		"a replaced run cleans up":             append(chain(), at(4, "c", commit(2, "e", ok, 11, 12)), cleanUp(1, 2, 13, 14), at(2, "", open("b", "", 15, 16))),
		"a view lacks a partition":             append(batch(1, "a", "b", 1, 2), view("a", "", 3, 4)),
		"a view is of two runs":                append(append(batch(1, "a", "b", 1, 2), batch(2, "c", "d", 3, 9)...), view("a", "d", 5, 6)),
		"a view goes back to an earlier run":   append(append(batch(1, "a", "b", 1, 2), batch(2, "c", "d", 3, 4)...), view("a", "b", 5, 6)),
		"a view shows what nobody made":        append(batch(1, "a", "b", 1, 2), view("a", "z", 3, 4)),
		"a view finds nothing":                 append(batch(1, "a", "b", 1, 2), failed(missing, view("", "", 3, 4))),
		"a snapshot finds its version corrupt": append(chain(), failed("corrupt", &call{Op: "snapshot", Store: "s", Version: 4, Attempt: "d", Run: 1, Begin: 11, End: 12})),
		"a fork has another's version below":   append(chain(), at(3, "", forkOf("c", 11, 12)), at(2, "", in(0, open("", "z", 13, 14)))),
		"a fork is lost":                       {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), in(0, open("", "", 5, 6))},
		"a fork is corrupt":                    append(chain(), forkOf("a", 11, 12), cleanUp(1, 2, 13, 14), in(0, failed("corrupt", open("a", "", 15, 16)))),
		"a fork follows its origin":            {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), commit(1, "b", ok, 5, 6), in(0, open("", "b", 7, 8))},
		"a fork has another's rows":            {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), in(0, withRows(map[string]string{"row": "b"}, open("", "a", 5, 6)))},
		"a fork of an earlier twin":            {commit(1, "a", ok, 1, 2), commit(1, "b", ok, 3, 4), forkOf("a", 5, 6)},
		"a fork of what nobody made":           {commit(1, "a", ok, 1, 2), forkOf("z", 3, 4)},
		"a fork is there after its drop":       {commit(1, "a", ok, 1, 2), forkOf("a", 3, 4), drop(5, 6), in(0, open("", "a", 7, 8))},
		"a dropped query commits":              {in(0, commit(1, "a", ok, 1, 2)), drop(3, 4), in(0, commit(1, "b", ok, 5, 6))},
		"a late commit reaches the next query": {in(0, commit(1, "a", ok, 1, 2)), in(0, commit(1, "b", noAnswer, 3, 4)), drop(5, 6), in(1, commit(2, "c", ok, 7, 8)), in(1, open("", "b", 9, 10))},
		"a new query is refused":               {in(0, commit(1, "a", ok, 1, 2)), drop(3, 4), in(1, failed(configuration, commit(2, "b", ok, 5, 6)))},
		"a run commits after an adoption":      {commit(1, "a", ok, 1, 2), adopt(3, 4), commit(1, "b", ok, 5, 6)},
		"a run is refused before an adoption":  {commit(1, "a", ok, 1, 2), failed(configuration, commit(1, "b", ok, 3, 4)), adopt(5, 6)},
		"an adopted run cleans up":             append(chain(), at(1, "", adopt(11, 12)), cleanUp(1, 2, 13, 14), at(2, "", open("b", "", 15, 16))),
	} {
		convictions, err := verdict(t, calls)
		if err != nil || len(convictions) != 1 {
			t.Errorf("%s: %v %v", name, err, convictions)
		}
	}
}

func TestHistoriesThatCannotBeJudged(t *testing.T) {
	for name, calls := range map[string][]*call{
		"runs that began at once":   {commit(1, "a", ok, 1, 5), commit(2, "b", ok, 3, 6)},
		"a run without its earlier": {commit(2, "b", ok, 3, 6)},
		"an attempt made twice":     {commit(1, "a", ok, 1, 2), commit(1, "a", ok, 3, 4)},
		"an end before its begin":   {commit(1, "a", ok, 2, 1)},
		"a commit without an id":    {commit(1, "", ok, 1, 2)},
	} {
		if _, err := verdict(t, calls); err == nil {
			t.Errorf("%s: it was judged", name)
		}
	}
}

func TestAConvictionHasFewCallsAndAPicture(t *testing.T) {
	calls := []*call{commit(1, "a", ok, 1, 2), commit(1, "b", ok, 3, 4), open("", "a", 5, 6)}
	for i := int64(10); i < 50; i++ {
		calls = append(calls, open("b", "b", i, i+1), open("", "b", i, i+1))
	}
	path, folder := write(t, calls), t.TempDir()
	convicted, err := report(folder, path)
	if err != nil || !convicted {
		t.Fatal(convicted, err)
	}
	picture, err := os.ReadFile(filepath.Join(folder, "history-1.html"))
	if err != nil || !strings.Contains(string(picture), "open s 1") {
		t.Error("there is no picture", err)
	}
	convictions, err := verdict(t, calls)
	if err != nil || len(convictions) != 1 || len(convictions[0].calls) != 3 {
		t.Error("not three calls", err, convictions)
	}
}
