package rdmacore

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// event is a CM event, copied out of C.
type event struct {
	typ    cm.EventType
	status int // 0, a negative errno, a reject reason, or -1 with the errno in lost
	lost   syscall.Errno
	conn   cm.ConnParam
}

// errno is the errno in the event's status. librdmacm says -1 when its own part of the work failed.
func (e event) errno() syscall.Errno {
	switch {
	case e.status == -1 && e.lost != 0:
		return e.lost
	case e.status < 0:
		return syscall.Errno(-e.status)
	}
	return syscall.Errno(e.status)
}

// state is where a cm id stands.
type state uint8

const (
	stateIdle state = iota
	stateResolvingAddr
	stateAddrResolved
	stateResolvingRoute
	stateResolved
	stateConnecting
	stateListening
	stateRequested // a request that was not answered yet
	stateAccepting
	stateEstablished
	stateEnded // failed, given up, or over
	stateClosed
	numStates
)

func (s state) String() string {
	return [...]string{"idle", "resolving address", "address resolved", "resolving route", "resolved", "connecting",
		"listening", "requested", "accepting", "established", "ended", "closed"}[s]
}

// action says what an event does besides the change of state.
type action uint8

const (
	actNone    action = 0
	actWake    action = 1 << iota // the step that waits has its answer
	actFail                       // the same, and the answer is an error
	actNotify                     // the user is told
	actRequest                    // a peer wants to connect
	actRefuse                     // the same, but nobody listens any more
)

// waits maps the states in which a step waits for an event to the event and to the state it leads to.
var waits = map[state]struct {
	event cm.EventType
	next  state
}{
	stateResolvingAddr:  {cm.AddrResolved, stateAddrResolved},
	stateResolvingRoute: {cm.RouteResolved, stateResolved},
	stateConnecting:     {cm.Established, stateEstablished},
	stateAccepting:      {cm.Established, stateEstablished},
}

// transition says what an event means in a state. Every event is possible in every state: the kernel tells of removed
// devices and ended connections whenever it likes, and an event may be under way when a step is given up.
func transition(s state, e cm.EventType) (state, action) {
	if e == cm.ConnectRequest {
		if s == stateListening {
			return s, actRequest
		}
		return s, actRefuse
	}
	ends := endsConnection(e)
	switch s {
	case stateClosed:
		return s, actNone
	case stateListening:
		if e == cm.DeviceRemoval {
			return stateEnded, actFail
		}
		return s, actNone
	case stateResolvingAddr, stateResolvingRoute, stateConnecting, stateAccepting:
		w := waits[s]
		switch {
		case e == w.event:
			return w.next, actWake
		case e == cm.DeviceRemoval:
			return stateEnded, actFail | actNotify
		case ends:
			return stateEnded, actFail
		}
		return s, actNone
	case stateEstablished:
		switch {
		case e == cm.Established: // once more, of no interest
			return s, actNone
		case ends:
			return stateEnded, actNotify
		}
		return s, actNotify
	case stateEnded:
		if e == cm.Established { // an answer to what was given up
			return s, actNone
		}
		return s, actNotify
	}
	if ends { // before or between the steps
		return stateEnded, actNotify
	}
	return s, actNone
}

// endsConnection reports whether nothing can come of a connection after the event. ConnectResponse is one: librdmacm
// passes it on only if the QP is gone.
func endsConnection(e cm.EventType) bool {
	switch e {
	case cm.AddrError, cm.RouteError, cm.ConnectResponse, cm.ConnectError, cm.Unreachable, cm.Rejected, cm.Disconnected,
		cm.DeviceRemoval:
		return true
	}
	return false
}

// answer is what a step waits for.
type answer struct {
	ev  event
	err error
}

// machine is the state of a cm id, the step that waits, and the user's events.
type machine struct {
	mu      sync.Mutex
	state   state
	up      bool        // it was established once
	gaveUp  bool        // a step was given up: the kernel may still be at it
	cause   error       // why it ended, where an event says so
	step    chan answer // capacity 1: to the step that waits
	notify  func(cm.Event)
	pending []cm.Event
	running bool // a goroutine delivers pending
}

func newMachine(s state) *machine {
	return &machine{state: s, step: make(chan answer, 1)}
}

// handle takes an event from the dispatcher and returns what it meant. It does not block.
func (m *machine) handle(ev event) action {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, act := transition(m.state, ev.typ)
	if next == stateEnded && m.state != stateEnded {
		m.cause = eventErr(ev)
	}
	m.state = next
	m.up = m.up || next == stateEstablished
	switch {
	case act&actWake != 0:
		m.reply(answer{ev: ev})
	case act&actFail != 0:
		m.reply(answer{ev, m.cause})
	}
	if act&actNotify != 0 {
		m.pending = append(m.pending, cm.Event{Type: ev.typ, Status: ev.status})
		m.deliver()
	}
	return act
}

// reply answers the step that waits. Called with mu held.
func (m *machine) reply(a answer) {
	select {
	case m.step <- a:
	default: // it has its answer
	}
}

// begin starts a step: from one state to the one in which its answer is awaited.
func (m *machine) begin(from, to state) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.state == from:
		m.state = to
		return nil
	case m.state == stateClosed:
		return verbs.ErrClosed
	case m.state == stateEnded && m.cause != nil:
		return m.cause
	}
	return fmt.Errorf("%w: the connection is %v, not %v", syscall.EINVAL, m.state, from)
}

// await waits for the answer to the running step. When ctx ends first the step is given up and the id can only be closed.
func (m *machine) await(ctx context.Context) (event, error) {
	select {
	case a := <-m.step:
		return a.ev, a.err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != stateClosed {
		m.gaveUp = m.gaveUp || m.state != stateEnded && m.state != stateEstablished
		m.state = stateEnded
	}
	return event{}, ctx.Err()
}

// fail ends the running step with an error that was no event.
func (m *machine) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, waiting := waits[m.state]; waiting {
		m.state = stateEnded
		m.cause = err
		m.reply(answer{err: err})
	}
}

// close makes the machine deaf and ends a waiting step. It reports whether a step was left without an answer.
func (m *machine) close() (unanswered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, waiting := waits[m.state]; waiting {
		m.gaveUp = true
	}
	m.state = stateClosed
	m.pending = nil
	m.reply(answer{err: verbs.ErrClosed})
	return m.gaveUp
}

// established reports whether there is or was a connection. ErrClosed once closed.
func (m *machine) established() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == stateClosed {
		return false, verbs.ErrClosed
	}
	return m.up, nil
}

// begun reports whether the connection is being made, or was.
func (m *machine) begun() bool {
	switch m.now() {
	case stateConnecting, stateAccepting, stateEstablished, stateEnded:
		return true
	}
	return false
}

func (m *machine) now() state {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

func (m *machine) setNotify(f func(cm.Event)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notify = f
	m.deliver()
}

// deliver has a goroutine hand out the pending events, so that the dispatcher never runs the user's code. Called with
// mu held.
func (m *machine) deliver() {
	if m.running || m.notify == nil || len(m.pending) == 0 {
		return
	}
	m.running = true
	go func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for len(m.pending) > 0 && m.notify != nil {
			ev, f := m.pending[0], m.notify
			m.pending = m.pending[1:]
			m.mu.Unlock()
			f(ev)
			m.mu.Lock()
		}
		m.running = false
	}()
}
