// The judge of histories: `judge FOLDER HISTORY...` says whether an order of the calls explains each history.
//
// A history that none explains is printed, with as few calls as could be found, and FOLDER gets porcupine's picture of
// it. The exit code is 0 if all are explained, 1 if one is not, and 2 if one cannot be judged.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/anishathalye/porcupine"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: judge FOLDER HISTORY...")
		os.Exit(2)
	}
	code := 0
	for _, path := range os.Args[2:] {
		convicted, err := report(os.Args[1], path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s\n", path, err)
			os.Exit(2)
		}
		if convicted {
			code = 1
		}
	}
	os.Exit(code)
}

func report(folder, path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	calls, err := read(file)
	if err != nil {
		return false, err
	}
	versions, convictions, err := judge(calls)
	if err != nil {
		return false, err
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	fmt.Printf("%s: %d calls, %d versions, %d not explained\n", name, len(calls), versions, len(convictions))
	for i, convicted := range convictions {
		picture := filepath.Join(folder, fmt.Sprintf("%s-%d.html", name, i+1))
		if err := porcupine.VisualizePath(convicted.model, convicted.info, picture); err != nil {
			return false, err
		}
		fmt.Printf("\nno order explains these calls; picture: %s\n", picture)
		for _, one := range convicted.calls {
			fmt.Printf("%s client %d %s\n", times(calls, one), one.Client, one)
		}
	}
	return len(convictions) > 0, nil
}

// times are begin and end of a call, in milliseconds since the history began.
func times(calls []*call, one *call) string {
	end := "     …"
	if !(one.mayAppend() && one.Outcome != ok) {
		end = fmt.Sprintf("%6d", (one.End-calls[0].Begin)/1e6)
	}
	return fmt.Sprintf("%6d %s ms", (one.Begin-calls[0].Begin)/1e6, end)
}
