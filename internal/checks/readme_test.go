package checks

import (
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rconn/rdma/rconn"
)

// What the first diffs of the READMEs show, before and after. They are compiled; rconn's tests of HTTP run the like of them.
var _ = []func(http.Handler){stockServer, rdmaServer}

func stockServer(handler http.Handler) {
	ln, err := net.Listen("tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(ln, handler))
}

func rdmaServer(handler http.Handler) {
	ln, err := rconn.Listen("tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(ln, handler))
}

var _ = []func() *http.Client{stockClient, rdmaClient}

func stockClient() *http.Client {
	client := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext}}
	return client
}

func rdmaClient() *http.Client {
	client := &http.Client{Transport: &http.Transport{DialContext: (&rconn.Dialer{}).DialContext}}
	return client
}

// The first two diffs of each README are of one line, and both sides are compiled above. Package compat has the test of the others.
func TestFirstDiffsOfREADMEAreCompiled(t *testing.T) {
	source, _, err := functionsOf("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "README.zh-CN.md"} {
		data, err := os.ReadFile(filepath.Join(moduleRoot(t), name))
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(string(data), "```diff\n")
		if len(blocks) < 3 {
			t.Fatalf("%s has %d diffs", name, len(blocks)-1)
		}
		for i, program := range []string{"Server", "Client"} {
			block, _, _ := strings.Cut(blocks[i+1], "```")
			before, after, changed := sides(block)
			if changed != 1 {
				t.Errorf("%s, %s: %d lines are new", name, program, changed)
			}
			if !strings.Contains(source["stock"+program], before) {
				t.Errorf("%s: this is not compiled:\n%s", name, before)
			}
			if !strings.Contains(source["rdma"+program], after) {
				t.Errorf("%s: this is not compiled:\n%s", name, after)
			}
		}
	}
}

// sides returns the code before and after a diff, without indentation, and how many lines are new.
func sides(diff string) (before, after string, changed int) {
	var b, a strings.Builder
	for line := range strings.Lines(diff) {
		switch line[0] {
		case '-':
			b.WriteString(line[1:])
		case '+':
			a.WriteString(line[1:])
			changed++
		default:
			b.WriteString(line)
			a.WriteString(line)
		}
	}
	return flat(b.String()), flat(a.String()), changed
}
