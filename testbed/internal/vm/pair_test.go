package vm

import (
	"strings"
	"testing"
)

func newTestPair() (p *pair, a, b func(string) (string, error)) {
	p = &pair{a: newMachine("A", Spec{}), b: newMachine("B", Spec{}), joins: make(map[string]*[2]int)}
	asker := func(m *machine) func(string) (string, error) {
		return func(line string) (string, error) { return m.control(strings.Fields(line), p.serve(m)) }
	}
	return p, asker(p.a), asker(p.b)
}

func TestBarrier(t *testing.T) {
	p, a, b := newTestPair()
	expect := func(ask func(string) (string, error), line, want string) {
		t.Helper()
		if got, err := ask(line); err != nil || got != want {
			t.Fatalf("%s: got %q, %v; want %q", line, got, err, want)
		}
	}
	expect(a, "join x", "1")
	expect(a, "met x 1", "no")
	expect(b, "join y", "1") // another barrier
	expect(a, "met x 1", "no")
	expect(b, "join x", "1")
	expect(b, "met x 1", "yes")
	expect(a, "met x 1", "yes")

	// The same name again is another meeting.
	expect(a, "join x", "2")
	expect(a, "met x 2", "no")

	// Nobody comes any more.
	p.b.endWith(exitStatus(0))
	if _, err := a("met x 2"); err == nil {
		t.Error("no error though the peer has ended")
	}
	// But who had come before the end has been met.
	expect(a, "met x 1", "yes")
}

func TestControlRefuses(t *testing.T) {
	_, a, _ := newTestPair()
	for _, line := range []string{"", "cable", "cable sideways", "exit", "exit x", "met x", "met x y", "peer", "join"} {
		if answer, err := a(line); err == nil {
			t.Errorf("%q was answered %q", line, answer)
		}
	}
	m := newMachine("", Spec{})
	if _, err := m.control([]string{"peer", "kill"}, noPeer); err == nil {
		t.Error("a single guest has no peer")
	}
}

func TestFirstCauseStands(t *testing.T) {
	m := newMachine("", Spec{})
	if m.hasEnded() {
		t.Error("ended before it began")
	}
	m.endWith(exitStatus(3))
	m.endWith(errDown)
	if !m.hasEnded() || m.cause != exitStatus(3) {
		t.Errorf("cause %v, want exit status 3", m.cause)
	}
}
