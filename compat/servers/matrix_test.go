package servers

import (
	_ "embed"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rconn/rdma/compat"
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

// note appends a cell of the matrix to the file that MATRIX names, as a line: the row's name, its versions, what it does, the column, the
// result. tools/compat.sh makes the table of such lines, for they come from several processes.
func (r row) note(t *testing.T, l link, ok bool, took time.Duration) {
	file := os.Getenv("MATRIX")
	if file == "" || role == "server" {
		return
	}
	var versions []string
	for _, m := range r.modules {
		if strings.Contains(m, "/") { // else a program, with its version in the name
			m += " " + version(m)
		}
		versions = append(versions, m)
	}
	if versions == nil {
		versions = []string{runtime.Version()}
	}
	result := fmt.Sprintf("%.1f s", took.Seconds())
	if !ok {
		result = "fails"
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	check(t, err)
	_, err = fmt.Fprintln(f, strings.Join([]string{r.name, strings.Join(versions, "<br>"), r.does, column(l), result}, "\t"))
	check(t, err)
	check(t, f.Close())
}

// column names a column: the kind of device, with what is special.
func column(l link) string {
	switch kind := strings.TrimRight(device, "0123456789"); {
	case role != "":
		return kind + " pair"
	case l.policy == compat.TCPOnly:
		return kind + " tcp"
	default:
		return kind + " " + l.name
	}
}

// programs are what a process does instead of tests if COMPAT_PROGRAM names one.
var programs = make(map[string]func())

func TestMain(m *testing.M) {
	if program := programs[os.Getenv("COMPAT_PROGRAM")]; program != nil {
		program()
		return
	}
	m.Run()
}
