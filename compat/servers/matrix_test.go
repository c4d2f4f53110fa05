package servers

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// goMod is where the versions come from: with go mod tidy it has those that are built. A test's build information has none (Go 1.26).
//
//go:embed go.mod
var goMod string

// version is the version of a module.
func version(module string) string {
	for line := range strings.Lines(goMod) {
		if f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require ")); len(f) >= 2 && f[0] == module {
			return f[1]
		}
	}
	return "?"
}

// results has what the rows did, for the matrix.
var results struct {
	sync.Mutex
	rows  []row
	cells map[string]string // by row and link
}

// ran notes how a row went.
func ran(r row, l link, ok bool, took time.Duration) {
	results.Lock()
	defer results.Unlock()
	if results.cells == nil {
		results.cells = make(map[string]string)
	}
	if !slices.ContainsFunc(results.rows, func(o row) bool { return o.name == r.name }) {
		results.rows = append(results.rows, r)
	}
	cell := fmt.Sprintf("%.1f s", took.Seconds())
	if before := results.cells[r.name+l.name]; !ok || before == "fails" {
		cell = "fails"
	}
	results.cells[r.name+l.name] = cell
}

// matrix is the table, in Markdown.
func matrix() string {
	results.Lock()
	defer results.Unlock()
	slices.SortFunc(results.rows, func(a, b row) int { return strings.Compare(strings.ToLower(a.name), strings.ToLower(b.name)) })
	var s strings.Builder
	s.WriteString("| | versions | what the test does |")
	for _, l := range links {
		s.WriteString(" " + l.name + " |")
	}
	s.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(links)) + "\n")
	for _, r := range results.rows {
		var versions []string
		for _, m := range r.modules {
			v := version(m)
			if !strings.Contains(m, "/") {
				v = "" // a program, with its version in the name
			}
			versions = append(versions, strings.TrimSpace(m+" "+v))
		}
		if versions == nil {
			versions = []string{runtime.Version()}
		}
		fmt.Fprintf(&s, "| %s | %s | %s |", r.name, strings.Join(versions, "<br>"), r.does)
		for _, l := range links {
			fmt.Fprintf(&s, " %s |", or(results.cells[r.name+l.name], "-"))
		}
		s.WriteString("\n")
	}
	return s.String()
}

var matrixFile = flag.String("matrix", "", "`file` to which the matrix is written")

// programs are what a process does instead of tests if COMPAT_PROGRAM names one.
var programs = make(map[string]func())

func TestMain(m *testing.M) {
	if program := programs[os.Getenv("COMPAT_PROGRAM")]; program != nil {
		program()
		return
	}
	flag.Parse()
	status := m.Run()
	if *matrixFile != "" {
		if err := os.WriteFile(*matrixFile, []byte(matrix()), 0o666); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}
