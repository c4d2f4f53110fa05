//go:build guest

package tests

import (
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// number finds the one number that a pattern's group stands for.
func number(t *testing.T, out, pattern string) float64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1)
	if len(m) != 1 {
		t.Fatalf("%d matches of %s, want 1, in:\n%s", len(m), pattern, out)
	}
	n, err := strconv.ParseFloat(m[0][1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// seen has a program's lines in the report.
func seen(t *testing.T, out string) {
	for line := range strings.Lines(out) {
		t.Logf("seen: %s", strings.TrimSpace(line))
	}
}

// examples/kv: when receives run out, rxe has the senders wait, and they go on.
func TestRxeCasesKV(t *testing.T) {
	out := run(t, program("kv"), "-addr", net.JoinHostPort(addr, "7010"), "-demo", "-starve", "100ms")
	seen(t, out)
	for _, stage := range []string{"with credits", "with credits, server late"} {
		if number(t, out, `(?m)^`+stage+` +([0-9]+) requests/s, receives ran low \d+ times$`) == 0 {
			t.Errorf("%s: no requests", stage)
		}
	}
	const without = `(?m)^without credits, server late +`
	if number(t, out, without+`([0-9]+) requests/s, .* times receiver not ready$`) == 0 {
		t.Error("without credits: no requests")
	}
	if number(t, out, without+`.*, ([0-9]+) times receiver not ready$`) == 0 {
		t.Error("without credits: the device has counted no message without a receive")
	}
}

// On iWARP the connections break, unless there are credits.
func TestSiwCasesKV(t *testing.T) {
	out := run(t, program("kv"), "-addr", net.JoinHostPort(addr, "7010"), "-demo", "-starve", "100ms")
	seen(t, out)
	for _, stage := range []string{"with credits", "with credits, server late"} {
		if number(t, out, `(?m)^`+stage+` +([0-9]+) requests/s, receives ran low \d+ times$`) == 0 {
			t.Errorf("%s: no requests", stage)
		}
	}
	if number(t, out, `(?m)^without credits, server late +([0-9]+) of 8 connections broke: `) == 0 {
		t.Error("without credits: no connection broke")
	}
}

// examples/params: reads are torn in place and in no other way, and the owner has nothing to do. Reads in place are torn where updates
// follow each other closely; on a slow machine hardly a read by a version word comes through then, but it does where updates are rare.
func TestRxeCasesParams(t *testing.T) {
	torn, reads := make(map[string]float64), make(map[string]float64)
	for i, every := range []string{"5ms", "200ms"} {
		at := net.JoinHostPort(addr, strconv.Itoa(7020+i))
		owner := start(t, program("params"), "-listen", at)
		owner.listens(t)
		out := run(t, program("params"), "-addr", at, "-every", every, "-for", "2s")
		waitFor(t, "the owner's account", func() bool { return strings.Contains(owner.out.String(), "of CPU") })
		seen(t, out+owner.out.String())
		for _, way := range []string{"in place", "version word", "two buffers"} {
			torn[way] += number(t, out, `(?m)^`+way+` .* (\d+) of +\d+ torn`)
			reads[way] += number(t, out, `(?m)^`+way+` .* of +(\d+) torn`)
		}
		clients := number(t, out, `this process used ([0-9.]+) s of CPU`)
		if owners := number(t, owner.out.String(), `lent for .*: ([0-9.]+) s of CPU`); owners > clients/10 {
			t.Errorf("the owner used %v s of CPU, those who read and update %v s", owners, clients)
		}
		if quiet := number(t, owner.out.String(), `without connecting: .*\(([0-9.]+)%\)`); quiet > 5 {
			t.Errorf("the owner used %v%% of a CPU when all it did was to own", quiet)
		}
	}
	for way, n := range torn {
		if (n > 0) != (way == "in place") {
			t.Errorf("%s: %v torn reads", way, n)
		}
		if reads[way] == 0 {
			t.Errorf("%s: no reads", way)
		}
	}
}

// examples/lock: exact under each kind of lock, and what becomes of dead and late holders.
func TestRxeCasesLock(t *testing.T) {
	server := start(t, program("lock"), "-listen", net.JoinHostPort(addr, "7030"))
	server.listens(t)
	out := run(t, program("lock"), "-addr", net.JoinHostPort(addr, "7030"))
	seen(t, out)
	if number(t, out, `(?m)^none .* counter has lost (\d+) of \d+$`) == 0 {
		t.Error("nothing was lost without a lock")
	}
	for _, kind := range []string{"cas", "ticket", "lease"} {
		if number(t, out, `(?m)^`+kind+` +(\d+) acquisitions/s.* counter is exact$`) == 0 {
			t.Errorf("%s: no acquisitions", kind)
		}
	}
	for _, line := range []string{
		`a dead holder's lock is still taken after 200ms and \d+ tries`,
		`a dead holder's lease of 100ms was taken over after \S+`,
		`two added 1 by WRITE, the counter grew by 1`,
		`the same with its token: the counter grew by 1, and the late one was told: the counter has seen a later lease`,
	} {
		if !regexp.MustCompile(line).MatchString(out) {
			t.Errorf("%s: not in\n%s", line, out)
		}
	}
}

// Contenders of 8 processes.
func TestRxeCasesLockProcesses(t *testing.T) {
	server := start(t, program("lock"), "-listen", net.JoinHostPort(addr, "7031"))
	server.listens(t)
	out := run(t, program("lock"), "-addr", net.JoinHostPort(addr, "7031"), "-processes", "-kind", "cas")
	seen(t, out)
	if number(t, out, `(?m)^cas +(\d+) acquisitions/s.* counter is exact$`) == 0 {
		t.Error("no acquisitions")
	}
}

// What soft-iWARP lacks is said at the start.
func TestSiwCasesWithoutAtomics(t *testing.T) {
	for _, name := range []string{"params", "lock"} {
		server := start(t, program(name), "-listen", net.JoinHostPort(addr, "7040"))
		server.fails(t)
		want := name + ": RDMA device siw0 does not support ATOMIC_CMP_AND_SWP\n"
		if got := server.out.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
