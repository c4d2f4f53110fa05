package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Lines that the guest's script prints around each test's own output.
const (
	markBegin = "@vmtest begin "
	markEnd   = "@vmtest end "
)

// script is what a guest runs for tests: each in a process of its own, so that
// one cannot spoil the next, and in the package's folder as go test has it.
func script(tests []string, limit time.Duration) string {
	var b strings.Builder
	b.WriteString("cd testbed/tests\n")
	for _, test := range tests {
		fmt.Fprintf(&b, "printf '\\n%s%%s\\n' %s\n", markBegin, test)
		fmt.Fprintf(&b, "\"$OUT\"/guest.test -test.v -test.run '^%s$' -test.timeout %s\n", test, limit)
		fmt.Fprintf(&b, "printf '\\n%s%%s %%s\\n' %s $?\n", markEnd, test)
	}
	return b.String()
}

// A record is what is known of one test in one guest.
type record struct {
	test    string
	begun   bool
	ended   bool
	status  string // exit status of the test's process, once ended
	output  string
	elapsed string // as the test itself says
}

// passed wants both a good exit and the test's own word: a test that was
// skipped, or did not exist, exits well too.
func (r *record) passed() bool { return r.ended && r.status == "0" && r.elapsed != "" }

var reSeen = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: seen: (.*)$`)

// seen is what a test logs for all to see, figures most of the time: lines that begin with "seen: ".
func (r *record) seen() (lines []string) {
	for _, m := range reSeen.FindAllStringSubmatch(r.output, -1) {
		lines = append(lines, m[1])
	}
	return lines
}

// told is what a test printed, without the names of parts that said nothing: those before another name.
func (r *record) told() string {
	const name = "=== "
	var b strings.Builder
	for rest := r.output; rest != ""; {
		line, after, _ := strings.Cut(rest, "\n")
		if !strings.HasPrefix(line, name) || !strings.HasPrefix(after, name) {
			b.WriteString(line + "\n")
		}
		rest = after
	}
	return b.String()
}

// A transcript takes a guest's output apart into records.
type transcript struct {
	progress func() // called when a test begins or ends

	mu      sync.Mutex
	partial string
	current *record
	records map[string]*record
	stray   strings.Builder // output outside of tests
}

func newTranscript(tests []string) *transcript {
	t := &transcript{progress: func() {}, records: make(map[string]*record)}
	for _, test := range tests {
		t.records[test] = &record{test: test}
	}
	return t
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.partial += string(p)
	for {
		line, rest, found := strings.Cut(t.partial, "\n")
		if !found {
			return len(p), nil
		}
		t.partial = rest
		t.line(line)
	}
}

func (t *transcript) line(line string) {
	if test, ok := strings.CutPrefix(line, markBegin); ok && t.records[test] != nil {
		t.current = t.records[test]
		t.current.begun = true
		t.progress()
		return
	}
	if rest, ok := strings.CutPrefix(line, markEnd); ok && t.current != nil {
		if test, status, _ := strings.Cut(rest, " "); test == t.current.test {
			t.current.finish(status)
			t.current = nil
			t.progress()
			return
		}
	}
	if t.current == nil {
		t.stray.WriteString(line + "\n")
		return
	}
	t.current.output += line + "\n"
}

var rePass = regexp.MustCompile(`--- PASS: (\S+) \(([0-9.]+s)\)`)

func (r *record) finish(status string) {
	r.ended, r.status = true, status
	for _, m := range rePass.FindAllStringSubmatch(r.output, -1) {
		if m[1] == r.test {
			r.elapsed = m[2]
		}
	}
}

// record returns what is known of test; call it when the guest has ended.
func (t *transcript) record(test string) record {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := *t.records[test]
	if t.current != nil && t.current.test == test {
		r.output += t.partial
	}
	return r
}
