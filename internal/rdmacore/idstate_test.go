package rdmacore

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

const numEvents = cm.AddrinfoError + 2 // one beyond those that have a name

// TestEveryEventInEveryState: each has a result that keeps the rules, and none panics.
//
// fault: DEATH-5
func TestEveryEventInEveryState(t *testing.T) {
	for s := range numStates {
		for e := range numEvents {
			next, act := transition(s, e)
			_, waiting := waits[s]
			switch {
			case next >= numStates:
				t.Errorf("%v, %v: no such state", s, e)
			case s == stateClosed && e != cm.ConnectRequest && (next != s || act != actNone):
				t.Errorf("%v, %v: leads to %v, %d", s, e, next, act)
			case s == stateEnded && next != stateEnded:
				t.Errorf("%v, %v: leads to %v", s, e, next)
			case e == cm.ConnectRequest && act != actRequest && act != actRefuse:
				t.Errorf("%v, %v: the new id is forgotten", s, e)
			case act&(actWake|actFail) != 0 && !waiting && s != stateListening:
				t.Errorf("%v, %v: wakes a step, but none waits", s, e)
			case waiting && next != s && act&(actWake|actFail) == 0:
				t.Errorf("%v, %v: leaves the waiting step without an answer", s, e)
			case act&actFail != 0 && next != stateEnded:
				t.Errorf("%v, %v: fails, and leads to %v", s, e, next)
			case next != s && next == stateEstablished && e != cm.Established:
				t.Errorf("%v, %v: leads to %v", s, e, next)
			case e == cm.DeviceRemoval && s != stateClosed && next != stateEnded:
				t.Errorf("%v, %v: leads to %v", s, e, next)
			case s == stateEstablished && (cm.Event{Type: e}).Ends() && e != cm.ConnectRequest && endsConnection(e) && next != stateEnded:
				t.Errorf("%v, %v: leads to %v", s, e, next)
			}
		}
	}
}

// TestMachineTakesEverything runs every event against a machine in every state, with and without somebody who listens.
func TestMachineTakesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for s := range numStates {
			for e := range numEvents {
				for _, status := range []int{0, -1, -110, 8, 28} {
					m := newMachine(s)
					told := 0
					m.setNotify(func(cm.Event) { told++ })
					_, act := transition(s, e)
					m.handle(event{typ: e, status: status})
					m.handle(event{typ: e, status: status}) // and once more
					synctest.Wait()
					if act&actNotify != 0 && told == 0 {
						t.Errorf("%v, %v: nobody was told", s, e)
					}
					if act&actFail != 0 && s != stateListening {
						if _, err := m.await(t.Context()); err == nil {
							t.Errorf("%v, %v: the step failed without an error", s, e)
						}
					}
					m.close()
					m.handle(event{typ: e})
				}
			}
		}
	})
}

func TestDisconnectedBeforeEstablished(t *testing.T) {
	m := newMachine(stateConnecting)
	m.handle(event{typ: cm.Disconnected})
	m.handle(event{typ: cm.Established}) // too late
	if _, err := m.await(t.Context()); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("connect: %v", err)
	}
	if err := m.begin(stateResolved, stateConnecting); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the next step: %v", err)
	}
}

func TestEstablishedThenDisconnected(t *testing.T) {
	m := newMachine(stateAccepting)
	m.handle(event{typ: cm.Established})
	m.handle(event{typ: cm.Disconnected})
	if _, err := m.await(t.Context()); err != nil {
		t.Errorf("accept: %v", err)
	}
	got := make(chan cm.Event, 1)
	m.setNotify(func(ev cm.Event) { got <- ev })
	if ev := <-got; ev.Type != cm.Disconnected {
		t.Errorf("told of %v", ev)
	}
}

func TestAwaitGivenUp(t *testing.T) {
	m := newMachine(stateConnecting)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.await(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	m.handle(event{typ: cm.Established})
	if s := m.now(); s != stateEnded {
		t.Errorf("a connect that was given up is %v", s)
	}
	if up, _ := m.established(); up {
		t.Error("and counts as established")
	}
}

func TestCloseEndsStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(stateResolvingAddr)
		go func() {
			time.Sleep(time.Second)
			m.close()
		}()
		if _, err := m.await(t.Context()); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
		if err := m.begin(stateResolvingAddr, stateAddrResolved); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
		if _, err := m.established(); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestNotifyOrder: events from before and after the call, in order, one at a time, from no lock.
func TestNotifyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(stateEstablished)
		want := []cm.EventType{cm.AddrChange, cm.Disconnected, cm.DeviceRemoval, cm.TimewaitExit}
		m.handle(event{typ: want[0]})
		var mu sync.Mutex
		var got []cm.EventType
		m.setNotify(func(ev cm.Event) {
			if !mu.TryLock() {
				t.Error("two calls at once")
				return
			}
			defer mu.Unlock()
			m.now() // takes the lock
			time.Sleep(time.Second)
			got = append(got, ev.Type)
		})
		for _, e := range want[1:] {
			m.handle(event{typ: e})
		}
		time.Sleep(time.Minute)
		synctest.Wait() // which the race detector knows
		if len(got) != len(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	})
}

// TestNotifyNobody: taking the function away while events are pending keeps them for the next.
func TestNotifyNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(stateEstablished)
		m.handle(event{typ: cm.AddrChange})
		m.handle(event{typ: cm.Disconnected})
		m.setNotify(func(cm.Event) { m.setNotify(nil) })
		synctest.Wait()
		var got []cm.EventType
		m.setNotify(func(ev cm.Event) { got = append(got, ev.Type) })
		synctest.Wait()
		if len(got) != 1 || got[0] != cm.Disconnected {
			t.Errorf("told of %v", got)
		}
	})
}

// TestUnanswered: whether the kernel may still be at a step when its id is closed.
func TestUnanswered(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for what, c := range map[string]struct {
		f    func(*machine)
		want bool
	}{
		"running":           {func(*machine) {}, true},
		"given up":          {func(m *machine) { m.await(cancelled) }, true},
		"refused":           {func(m *machine) { m.handle(event{typ: cm.Rejected}) }, false},
		"refused in C":      {func(m *machine) { m.fail(syscall.ECONNREFUSED) }, false},
		"established":       {func(m *machine) { m.handle(event{typ: cm.Established}) }, false},
		"and over":          {func(m *machine) { m.handle(event{typ: cm.Established}); m.handle(event{typ: cm.Disconnected}) }, false},
		"answer not wanted": {func(m *machine) { m.handle(event{typ: cm.Rejected}); m.await(cancelled) }, false},
	} {
		m := newMachine(stateConnecting)
		c.f(m)
		if got := m.close(); got != c.want {
			t.Errorf("%s: unanswered %v", what, got)
		}
	}
}
