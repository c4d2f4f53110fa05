package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The exploration visits every state that a small connection can get into: two ends, each with two segments of 2 bytes and
// 4 credits, each sending 8 bytes (6 on iWARP) and shutting down, under all orders of what can happen. In each state what check and the
// device of the simulation look for must hold, and from each something must be possible until both ends are finished.

// world is a state of the connection.
type world struct {
	a, b  *end
	grows bool
}

func newWorld(t testing.TB, variant Variant, size int) *world {
	cfg := Config{Variant: variant, Credits: 4, SendQueue: MinSendQueue}
	w := &world{a: newEnd(t, "a", cfg, 8, 4), b: newEnd(t, "b", cfg, 8, 4)}
	connect(t, w.a, w.b)
	for _, e := range []*end{w.a, w.b} {
		e.toWrite = size
		// As few receives as will do, so that one too few shows: the credits, and the control messages that can come on top.
		e.total = cfg.Credits + controlMessages[variant]
		e.receives = e.total
	}
	return w
}

// controlMessages is how many messages without credit can meet an end of the small connection before it posts receives again.
var controlMessages = [...]int{Immediate: 2, Separate: 2}

// batching has both ends hold bytes back while others are under way.
func (w *world) batching(size int) *world {
	w.a.Batch(size)
	w.b.Batch(size)
	return w
}

// clone copies the state, memory and all.
func (w *world) clone() *world {
	c := &world{a: w.a.clone(), b: w.b.clone(), grows: w.grows}
	c.a.peer, c.b.peer = c.b, c.a
	return c
}

// growing lets each ring grow once, at any time, from segments of 2 bytes to ones of 3.
func (w *world) growing() *world {
	w.grows = true
	return w
}

// move has a ring lie in other memory: a copy of the first, and of the grown one.
func (r *ring) move(from, first, big []byte) {
	for _, a := range []*area{&r.area, &r.old} {
		switch {
		case len(a.buf) == 0:
		case &a.buf[0] == &from[0]:
			a.buf = first[:len(a.buf):len(a.buf)]
		default:
			a.buf = big
		}
	}
}

func (e *end) clone() *end {
	c, s := *e, *e.Stream
	c.cfg.Send = append([]byte(nil), e.cfg.Send...)
	c.cfg.Recv = append([]byte(nil), e.cfg.Recv...)
	c.cfg.Table = append([]byte(nil), e.cfg.Table...)
	s.cfg = c.cfg
	c.bigSend, c.bigRecv = bytes.Clone(e.bigSend), bytes.Clone(e.bigRecv)
	s.send.ring.move(e.cfg.Send, c.cfg.Send, c.bigSend)
	s.recv.ring.move(e.cfg.Recv, c.cfg.Recv, c.bigRecv)
	s.send.table = c.cfg.Table
	s.send.queue.inFlight = append([]entryInFlight(nil), e.send.queue.inFlight...)
	c.Stream = &s
	c.posted = append([]Op(nil), e.posted...)
	c.arrived = append([]arrival(nil), e.arrived...)
	c.acks = append([]uint64(nil), e.acks...)
	return &c
}

// key tells states apart by all that their future depends on. The bytes in the rings follow from the positions, as long as
// nothing has gone wrong.
// The ends are alike: which is which does not matter.
func (w *world) key() string {
	a, b := w.a.appendKey(nil), w.b.appendKey(nil)
	if bytes.Compare(a, b) > 0 {
		a, b = b, a
	}
	return string(append(a, b...))
}

func (e *end) appendKey(k []byte) []byte {
	num := func(vs ...uint64) {
		for _, v := range vs {
			k = binary.AppendUvarint(k, v)
		}
	}
	flag := func(vs ...bool) {
		for _, v := range vs {
			b := byte(0)
			if v {
				b = 1
			}
			k = append(k, b)
		}
	}
	s, r, q := &e.send, &e.recv, &e.send.queue
	num(s.acked, s.posted, s.written, uint64(s.nsegs), uint64(s.next), uint64(s.seq), uint64(s.limit))
	for _, g := range s.segs[:s.nsegs] {
		num(g.Addr, uint64(g.Len))
	}
	num(q.done, q.posted, uint64(q.control), uint64(q.ops), uint64(q.controls), s.posted-q.from)
	num(r.consumed, r.received, r.offered, uint64(r.seq), uint64(r.granted), uint64(r.owed), e.updates)
	num(s.ring.base, r.ring.base, r.last)
	flag(s.ring.grown, r.ring.grown, e.hasHalf, e.shutdown, e.shutdownPosted, e.peerShutdown)
	num(uint64(e.half), uint64(e.receives), uint64(e.read), uint64(len(e.posted)), uint64(len(e.arrived)))
	flag(len(e.acks) > 0)
	for _, op := range e.posted {
		num(uint64(op.Kind), op.Addr, uint64(op.Len), uint64(op.Off), uint64(op.Msg))
		flag(op.Signal, op.Grown)
	}
	for _, a := range e.arrived {
		num(uint64(a.m))
	}
	if n := len(e.acks); n > 0 {
		num(e.acks[n-1])
	}
	return append(k, e.cfg.Table...)
}

// step is one thing that may happen at an end, without chance: all that is possible of it.
type step struct {
	name string
	can  func(*end) bool // false: do would do nothing, so that no copy need be made
	do   func(*end) (bool, error)
}

// steps are those of an end that follows the rules. As in rconn, a call posts all that it has made possible, receives first;
// between calls and what the link does any order may happen.
func steps() []step {
	return []step{
		{"write", (*end).canWrite, func(e *end) (bool, error) { return e.then(e.writeSome(4)) }},
		{"read", (*end).canRead, func(e *end) (bool, error) { return e.then(e.readSome(4)) }},
		{"ack", (*end).canAck, func(e *end) (bool, error) { return e.then(e.ackAll()) }},
		{"receive", (*end).canReceive, func(e *end) (bool, error) { return e.then(e.doReceive(nil)) }},
	}
}

func (e *end) canWrite() bool   { return e.written < e.toWrite && len(e.WriteSpan()) > 0 }
func (e *end) canRead() bool    { return len(e.ReadSpan()) > 0 }
func (e *end) canAck() bool     { return len(e.acks) > 0 }
func (e *end) canReceive() bool { return len(e.arrived) > 0 }

// ackAll takes the newest completion, which stands for all before it.
func (e *end) ackAll() (bool, error) {
	if n := len(e.acks); n > 1 {
		e.acks = e.acks[n-1:]
	}
	return e.doAck(nil)
}

// then posts what a step has made possible.
func (e *end) then(moved bool, err error) (bool, error) {
	if !moved || err != nil {
		return moved, err
	}
	e.receives += e.Owed()
	e.Reposted(e.Owed())
	return true, e.postAll()
}

func (e *end) postAll() error {
	for {
		if moved, err := e.doPost(nil); !moved || err != nil {
			return err
		}
		if _, err := e.deliverReady(); err != nil {
			return err
		}
	}
}

var errNotReady = errors.New("receiver not ready: more was granted than posted")

// deliverReady is doDeliver where no message may ever find no receive.
func (e *end) deliverReady() (bool, error) {
	if len(e.posted) > 0 && e.posted[0].Kind != Write && e.peer.receives == 0 {
		return false, errNotReady
	}
	return e.doDeliver(nil)
}

// explore visits all states depth first and returns their number, or what it found.
func explore(w *world, steps []step, limit int) (int, error) {
	seen := map[string]bool{w.key(): true}
	for stack := []*world{w}; len(stack) > 0; {
		w := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		moved := false
		for _, s := range steps {
			for side := range 2 {
				if !s.can([]*end{w.a, w.b}[side]) {
					continue
				}
				c := w.clone()
				e := []*end{c.a, c.b}[side]
				ok, err := s.do(e)
				if err == nil && ok {
					err = e.check()
				}
				if err != nil {
					return len(seen), fmt.Errorf("%s at %s: %w", s.name, e.name, err)
				}
				if !ok {
					continue
				}
				moved = true
				if k := c.key(); !seen[k] {
					seen[k] = true
					stack = append(stack, c)
				}
			}
		}
		if !moved && (!w.a.finished() || !w.b.finished()) {
			return len(seen), errors.New("deadlock")
		}
		if len(seen) > limit {
			return len(seen), fmt.Errorf("more than %d states", limit)
		}
	}
	return len(seen), nil
}

func TestExploreAllStates(t *testing.T) {
	size := 8
	if raceEnabled {
		size = 4 // nothing here runs at the same time; make unit runs it whole, without the race detector
	}
	for name, w := range map[string]*world{
		"immediate":          newWorld(t, Immediate, size),
		"separate":           newWorld(t, Separate, size-2), // twice the operations for each message
		"immediate, batches": newWorld(t, Immediate, size-2).batching(3),
		"separate, batches":  newWorld(t, Separate, max(2, size-4)).batching(3),
		"immediate, grows":   newWorld(t, Immediate, size/2).growing(),
		"separate, grows":    newWorld(t, Separate, 2).growing(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := steps()
			if w.grows {
				all = append(all, step{"grow send", func(e *end) bool { return e.bigSend == nil }, func(e *end) (bool, error) { return e.then(e.growSend(9)) }},
					step{"grow recv", func(e *end) bool { return e.bigRecv == nil }, func(e *end) (bool, error) { return e.then(e.growRecv(6)) }})
			}
			n, err := explore(w, all, 20_000_000)
			require.NoError(t, err)
			t.Logf("%d states", n)
		})
	}
}

// Faults planted on purpose are found.
func TestExploreFindsFaults(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*end)
		step  *step // instead of the step of that name, or besides
		want  string
	}{
		"reserve above half of the credits": {
			// A byte a message, so that credits run out before a segment does.
			plant: func(e *end) { e.send.maxWrite, e.send.reserve = 1, 3 },
			want:  "deadlock",
		},
		"grant before the receives are posted": {
			step: &step{"receive", (*end).canReceive, func(e *end) (bool, error) {
				moved, err := e.doReceive(nil)
				if !moved || err != nil {
					return moved, err
				}
				e.late += e.Owed() // posted when the next message is looked at
				e.Reposted(e.Owed())
				err = e.postAll()
				e.receives, e.late = e.receives+e.late-1, 1
				return true, err
			}},
			want: errNotReady.Error(),
		},
		"table entry rewritten before its segment was read": {
			step: &step{"hurry", (*end).canRead, func(e *end) (bool, error) {
				consumed := e.recv.consumed
				e.recv.consumed = e.recv.received
				err := e.postAll()
				e.recv.consumed = consumed
				return true, err
			}},
			want: "positions",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Immediate, 8)
			if c.plant != nil {
				c.plant(w.a)
				c.plant(w.b)
			}
			all := steps()
			if c.step != nil {
				all = append(slices.DeleteFunc(all, func(s step) bool { return s.name == c.step.name }), *c.step)
			}
			n, err := explore(w, all, 1_000_000)
			require.ErrorContains(t, err, c.want)
			t.Logf("%v, after %d states", err, n)
		})
	}
}
