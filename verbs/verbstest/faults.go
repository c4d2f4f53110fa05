package verbstest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// Op names a call that can be made to fail.
type Op string

// The calls. PostSend and PostRecv count work requests, not calls; PostRecv, Query and CreateQP are those of all kinds of queues and IDs.
const (
	AnyOp Op = ""

	AllocPD       Op = "AllocPD"
	AllocMR       Op = "AllocMR"
	RegMR         Op = "RegMR"
	CreateChannel Op = "CreateCompletionChannel"
	CreateCQ      Op = "CreateCQ"
	Poll          Op = "Poll"
	Wait          Op = "Wait"
	CreateSRQ     Op = "CreateSRQ"
	CreateAH      Op = "CreateAH"
	CreateQP      Op = "CreateQP"
	PostSend      Op = "PostSend"
	PostRecv      Op = "PostRecv"
	Query         Op = "Query"
	Modify        Op = "Modify"
	SetLimit      Op = "SetLimit"
	QueryPort     Op = "Port"
	QueryGID      Op = "GID"

	Resolve       Op = "Resolve"
	Connect       Op = "Connect"
	Listen        Op = "Listen"
	AcceptRequest Op = "Listener.Accept"
	Accept        Op = "Accept"
	Reject        Op = "Reject"
	Disconnect    Op = "Disconnect"
)

type faults struct {
	mu       sync.Mutex
	hooks    atomic.Pointer[[]*hook]       // replaced with mu held
	calls    [len(countedOps)]atomic.Int64 // as countedOps
	drops    map[cm.EventType]int
	spurious atomic.Int64
	waits    atomic.Int64
}

// countedOps are the calls that are counted.
var countedOps = [...]Op{
	Poll, PostSend, Wait, PostRecv, // the frequent ones first
	AllocPD, AllocMR, RegMR, CreateChannel, CreateCQ, CreateSRQ, CreateAH, CreateQP, Query, Modify, SetLimit, QueryPort, QueryGID,
	Resolve, Connect, Listen, AcceptRequest, Accept, Reject, Disconnect,
}

type hook struct {
	op Op
	f  func() error
}

// On has f called before each call of op on the host, without any lock, so that it can do anything at just that moment; an
// error it returns becomes the call's. AnyOp stands for all. The result removes f.
//
// A completion that arrives between a caller's last Poll and Wait, for example, is
//
//	host.On(verbstest.Wait, func() error { peer.PostSend(...); return nil })
func (h *Host) On(op Op, f func() error) (remove func()) {
	h.faults.mu.Lock()
	defer h.faults.mu.Unlock()
	added := &hook{op, f}
	// Always a fresh slice, since a call may be walking the old one.
	hooks := append(slices.Clone(h.hooks()), added)
	h.faults.hooks.Store(&hooks)
	return func() {
		h.faults.mu.Lock()
		defer h.faults.mu.Unlock()
		hooks := slices.DeleteFunc(slices.Clone(h.hooks()), func(k *hook) bool { return k == added })
		h.faults.hooks.Store(&hooks)
	}
}

// hooks are those that On has added.
func (h *Host) hooks() []*hook {
	if p := h.faults.hooks.Load(); p != nil {
		return *p
	}
	return nil
}

// Fail makes the n-th call of op from now on (1: the next) fail with err, once. With AnyOp, n from 1 upwards fails a
// procedure at each of its steps.
func (h *Host) Fail(op Op, n int, err error) (remove func()) {
	var mu sync.Mutex
	return h.On(op, func() error {
		mu.Lock()
		defer mu.Unlock()
		if n--; n == 0 {
			return err
		}
		return nil
	})
}

// Calls tells how many calls of op there were.
func (h *Host) Calls(op Op) int {
	sum := 0
	for i := range countedOps {
		if op == countedOps[i] || op == AnyOp {
			sum += int(h.faults.calls[i].Load())
		}
	}
	return sum
}

// before counts a call and runs the hooks. The fabric's lock is not held.
func (h *Host) before(op Op) error {
	h.countCalls(op, 1)
	for _, k := range h.hooks() {
		if k.op != op && k.op != AnyOp {
			continue
		}
		if err := k.f(); err != nil {
			return err
		}
	}
	return nil
}

// countCalls counts n calls.
func (h *Host) countCalls(op Op, n int) {
	for i := range countedOps {
		if countedOps[i] == op {
			h.faults.calls[i].Add(int64(n))
			return
		}
	}
	panic("not among countedOps: " + op)
}

// DropEvents loses the next n CM events of a type on this host, also those that Resolve, Connect and Accept wait for.
func (h *Host) DropEvents(t cm.EventType, n int) {
	h.faults.mu.Lock()
	defer h.faults.mu.Unlock()
	if h.faults.drops == nil {
		h.faults.drops = make(map[cm.EventType]int)
	}
	h.faults.drops[t] += n
}

func (h *Host) dropped(t cm.EventType) bool {
	h.faults.mu.Lock()
	defer h.faults.mu.Unlock()
	if h.faults.drops[t] == 0 {
		return false
	}
	h.faults.drops[t]--
	return true
}

// SpuriousWakes makes every n-th Wait on this host return without a completion. 0 ends it.
func (h *Host) SpuriousWakes(n int) {
	h.faults.spurious.Store(int64(n))
	h.faults.waits.Store(0)
}

func (h *Host) wakeSpuriously() bool {
	n := h.faults.spurious.Load()
	return n != 0 && h.faults.waits.Add(1)%n == 0
}

// InjectEvent gives a CM event to every connection of the host.
func (h *Host) InjectEvent(e cm.Event) {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	for _, id := range h.sortedIDs() {
		id.event(e)
	}
}

// InjectAsync gives an asynchronous event to the device's watchers.
func (d *Device) InjectAsync(e verbs.AsyncEvent) {
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	d.async(e)
}

// DelayCompletions makes completions appear later than what they tell of: memory is written and the peer has its own
// completions meanwhile. They stay in order within a queue.
func (d *Device) DelayCompletions(send, recv time.Duration) {
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	d.sendDelay, d.recvDelay = send, recv
}

// DelayEvents makes the device's CM events come later.
func (d *Device) DelayEvents(t time.Duration) {
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	d.eventDelay = t
}

// Pause stops the device from executing send requests, without any loss, until Resume.
func (d *Device) Pause() { d.pause(true) }

// Resume ends Pause.
func (d *Device) Resume() { d.pause(false) }

func (d *Device) pause(on bool) {
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	d.paused = on
	d.fab.pathsChanged()
}

// SetLink pulls the device's cable (false) or plugs it in: packets vanish both ways, and this side alone sees a port event.
func (d *Device) SetLink(up bool) {
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	if d.linkDown == !up {
		return
	}
	d.linkDown = !up
	e := verbs.EventPortActive
	if d.linkDown {
		e = verbs.EventPortErr
	}
	d.async(verbs.AsyncEvent{Type: e, Port: 1})
	d.fab.pathsChanged()
}

// Cut makes packets between two hosts vanish, without a sign on either, as a fault in a switch does.
func (f *Fabric) Cut(a, b *Host) { f.setCut(a, b, true) }

// Heal ends Cut.
func (f *Fabric) Heal(a, b *Host) { f.setCut(a, b, false) }

func (f *Fabric) setCut(a, b *Host, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cuts[pair(a, b)] = cut
	f.pathsChanged()
}

// Kill ends the host's process as SIGKILL does: its kernel closes everything and tells the peers. The host's objects
// fail from now on and leak nothing; a new process is a new Host, which may have the same addresses.
func (h *Host) Kill() {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	for _, id := range h.sortedIDs() {
		id.shut()
	}
	h.die()
}

// PowerCut ends the host without a word to its peers.
func (h *Host) PowerCut() {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	h.dark = true
	h.die()
}
