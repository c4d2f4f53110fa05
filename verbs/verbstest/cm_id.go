package verbstest

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// idState is how far a connection has come.
type idState int

const (
	idle       idState = iota
	connecting         // REQ sent, or to be sent
	requested          // REQ received
	accepting          // REP sent
	connected
	disconnecting // DREQ sent, not answered
	dreqReceived  // and not answered
	over
)

// id is one end of a connection. It is cm.Resolved on the dialing and cm.Request on the accepting side.
type id struct {
	fab     *Fabric
	host    *Host
	dev     *Device
	serial  int
	local   netip.AddrPort
	remote  netip.AddrPort
	passive bool
	state   idState
	peer    *id // known once the peer has our request, or we have its
	qp      *qp
	qpMade  bool
	request cm.ConnParam // what the request said, as this side sees it
	mine    cm.ConnParam // what this side has asked for

	answer    chan answer // Resolve, Connect or Accept waits here
	events    mailbox[cm.Event]
	eventLane lane
	messages  lane
	unseen    bool // a request whose event got lost
	closed    bool
}

type answer struct {
	param cm.ConnParam
	err   error
}

var (
	_ cm.Resolved = (*id)(nil)
	_ cm.Request  = (*id)(nil)
)

func newID(d *Device, local, remote netip.AddrPort) *id {
	d.host.lastID++
	i := &id{fab: d.fab, host: d.host, dev: d, serial: d.host.lastID, local: local, remote: remote}
	d.host.ids[i] = true
	d.host.count(&d.host.objects.IDs, 1)
	return i
}

func (i *id) Device() verbs.Device       { return i.dev }
func (i *id) LocalAddr() netip.AddrPort  { return i.local }
func (i *id) RemoteAddr() netip.AddrPort { return i.remote }

// Notify implements cm.ID.
func (i *id) Notify(f func(cm.Event)) { i.events.listen(f) }

// notify runs what a CM event causes on this host, unless the event gets lost.
func (i *id) notify(t cm.EventType, f func()) bool {
	if i.host.dropped(t) {
		return false
	}
	i.fab.in(&i.eventLane, i.dev.eventDelay, f)
	return true
}

// event gives an event to Notify's function.
func (i *id) event(e cm.Event) {
	i.notify(e.Type, func() { i.events.put(e) })
}

// lookUp finds out whether anybody has the remote address, and replies.
func (i *id) lookUp() {
	found := func() bool {
		d := i.fab.device(i.remote.Addr().WithZone(""))
		return d != nil && i.fab.path(i.dev, d)
	}
	i.fab.in(&i.messages, 2*i.fab.delay(), func() {
		if !found() {
			i.fab.after(arpTimeout, func() {
				i.notify(cm.AddrError, func() { i.reply(answer{err: syscall.EHOSTUNREACH}) })
			})
			return
		}
		i.notify(cm.AddrResolved, func() {
			i.notify(cm.RouteResolved, func() { i.reply(answer{}) })
		})
	})
}

const (
	messageRetry   = time.Second
	messageTimeout = time.Minute
)

// message brings a CM message to a device, again and again, until it arrives or nobody waits for it any more.
func (i *id) message(to func() *Device, arrive, giveUp func()) {
	start := i.fab.now()
	var try func()
	try = func() {
		d := to()
		switch {
		case d != nil && i.fab.path(i.dev, d):
			arrive()
		case i.fab.now()-start >= messageTimeout:
			giveUp()
		default:
			i.fab.after(messageRetry, try)
		}
	}
	i.fab.in(&i.messages, i.fab.delay(), try)
}

// tell sends the peer a message whose loss nobody notices.
func (i *id) tell(arrive func(peer *id)) {
	peer := i.peer
	i.message(func() *Device { return peer.dev }, func() { arrive(peer) }, func() {})
}

// reply ends the wait of Resolve, Connect or Accept.
func (i *id) reply(a answer) {
	if i.answer != nil {
		i.answer <- a
		i.answer = nil
	}
}

// Disconnect implements cm.ID.
func (i *id) Disconnect() error {
	if err := i.host.before(Disconnect); err != nil {
		return err
	}
	i.fab.mu.Lock()
	defer i.fab.mu.Unlock()
	if i.closed {
		return verbs.ErrClosed
	}
	switch i.state {
	case connected, dreqReceived:
		i.shut()
	case over:
		if i.qp != nil {
			i.qp.toError()
		}
	}
	return nil
}

// shut ends the connection, in whatever state, as far as this side can.
func (i *id) shut() {
	if i.state == connected && i.dev.iwarp() {
		i.streamEnded()
		return
	}
	state := i.state
	i.state = over
	if i.qp != nil && state != idle {
		i.qp.toError()
	}
	switch state {
	case connecting:
		if i.peer != nil {
			i.tell((*id).abandoned)
		}
	case requested:
		i.refuse(cm.RejectConsumer, nil)
	case accepting:
		i.tell(func(peer *id) {
			if peer.state == connecting {
				peer.refused(cm.RejectConsumer, nil)
			} else {
				peer.disconnected()
			}
		})
	case connected:
		i.state = disconnecting
		i.message(func() *Device { return i.peer.dev },
			func() { i.peer.disconnected() },
			func() { i.disconnectDone(-int(syscall.ETIMEDOUT)) })
	case disconnecting:
		i.state = disconnecting
	case dreqReceived:
		i.answerDisconnect()
	}
}

// disconnected is the arrival of the peer's DREQ.
func (i *id) disconnected() {
	switch i.state {
	case accepting:
		i.state = over
		if i.qp != nil {
			i.qp.toError()
		}
		i.reply(answer{err: syscall.ECONNRESET})
		i.answerDisconnect()
	case connected, disconnecting:
		// The QP stays as it is, and the peer without an answer, until Disconnect or Close.
		i.end(0)
		i.state = dreqReceived
		if i.closed {
			i.shut()
		}
	default:
		i.answerDisconnect()
	}
}

func (i *id) answerDisconnect() { i.tell(func(peer *id) { peer.disconnectDone(0) }) }

// disconnectDone is the arrival of the answer to our DREQ.
func (i *id) disconnectDone(status int) {
	if i.state == disconnecting {
		i.end(status)
	}
}

const timewait = 100 * time.Millisecond

func (i *id) end(status int) {
	i.state = over
	i.event(cm.Event{Type: cm.Disconnected, Status: status})
	if !i.dev.iwarp() {
		i.fab.after(timewait, func() { i.event(cm.Event{Type: cm.TimewaitExit}) })
	}
}

// streamEnded is the end of an iWARP connection, by either side.
func (i *id) streamEnded() {
	if i.state != connected {
		return
	}
	if i.qp != nil {
		i.qp.toError()
		i.qp.out.end()
	}
	i.end(0)
}

// deviceRemoved is the loss of the device below the connection.
func (i *id) deviceRemoved() {
	if i.state == connected && i.dev.iwarp() {
		// The kernel still closes the TCP connection.
		peer := i.peer
		i.fab.in(&i.messages, i.fab.delay(), peer.streamEnded)
	}
	i.state = over
	i.reply(answer{err: verbs.ErrDeviceRemoved})
	i.event(cm.Event{Type: cm.DeviceRemoval})
}

// die is the end of the process.
func (i *id) die() {
	i.state = over
	i.reply(answer{err: verbs.ErrDeviceRemoved})
	i.events.close()
}

// Close implements cm.ID.
func (i *id) Close() error {
	i.fab.mu.Lock()
	defer i.fab.mu.Unlock()
	switch {
	case i.closed:
		return nil
	case i.qp != nil && !i.qp.closed:
		i.fab.violate("host %s: ID closed while its QP is open", i.host.name)
		return verbs.ErrBusy
	}
	i.free()
	return nil
}

func (i *id) free() {
	i.shut()
	i.reply(answer{err: verbs.ErrClosed})
	i.closed = true
	i.events.close()
	delete(i.host.ids, i)
	i.host.count(&i.host.objects.IDs, -1)
}
