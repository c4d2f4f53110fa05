package rconn

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// meddler stands before a provider and lets its calls fail, and changes its events. The fabric can do that by itself; for the software
// device this does it.
type meddler struct {
	cm.Provider

	mu     sync.Mutex
	faults map[string]fault
	notify map[cm.ID]func(cm.Event)
	drop   map[cm.EventType]bool
}

type fault struct {
	in  int // calls until then
	err error
}

// The calls that can fail.
const (
	allocPD       = "AllocPD"
	allocMR       = "AllocMR"
	createChannel = "CreateCompletionChannel"
	createCQ      = "CreateCQ"
	createQP      = "CreateQP"
	postRecv      = "PostRecv"
	postSend      = "PostSend"
	connectID     = "Connect"
	acceptID      = "Accept"
	resolveAddr   = "Resolve"
)

// meddle puts meddlers before the providers of a network.
func (n *network) meddle() [2]*meddler {
	dialing, serving := newMeddler(n.dialing), newMeddler(n.serving)
	n.dialing, n.serving = dialing, serving
	return [...]*meddler{dialing, serving}
}

func newMeddler(p cm.Provider) *meddler {
	return &meddler{Provider: p, faults: map[string]fault{}, notify: map[cm.ID]func(cm.Event){}, drop: map[cm.EventType]bool{}}
}

func (m *meddler) Leaks() error { return m.Provider.(interface{ Leaks() error }).Leaks() }

// fail makes the k-th call from now on fail.
func (m *meddler) fail(call string, k int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[call] = fault{k, err}
}

// failed is the error that a call has now.
func (m *meddler) failed(call string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.faults[call]
	if f.in--; !ok || f.in > 0 {
		if ok {
			m.faults[call] = f
		}
		return nil
	}
	delete(m.faults, call)
	return f.err
}

// inject gives all connections an event.
func (m *meddler) inject(ev cm.Event) {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.notify))
	m.mu.Unlock()
	for _, f := range all {
		f(ev)
	}
}

// lose drops all events of the type.
func (m *meddler) lose(t cm.EventType) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop[t] = true
}

func (m *meddler) Resolve(ctx context.Context, local, remote netip.AddrPort) (cm.Resolved, error) {
	if err := m.failed(resolveAddr); err != nil {
		return nil, err
	}
	id, err := m.Provider.Resolve(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return meddledResolved{meddledID{id, m}, id}, nil
}

func (m *meddler) Listen(local netip.AddrPort, o cm.ListenOptions) (cm.Listener, error) {
	ln, err := m.Provider.Listen(local, o)
	if err != nil {
		return nil, err
	}
	return meddledListener{ln, m}, nil
}

type meddledListener struct {
	cm.Listener
	m *meddler
}

func (l meddledListener) Accept(ctx context.Context) (cm.Request, error) {
	req, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return meddledRequest{meddledID{req, l.m}, req}, nil
}

type meddledID struct {
	cm.ID
	m *meddler
}

func (i meddledID) Device() verbs.Device { return meddledDevice{i.ID.Device(), i.m} }

func (i meddledID) CreateQP(pd verbs.PD, o verbs.QPOptions) (verbs.QP, error) {
	if err := i.m.failed(createQP); err != nil {
		return nil, err
	}
	qp, err := i.ID.CreateQP(pd.(meddledPD).PD, o)
	if err != nil {
		return nil, err
	}
	return meddledQP{qp, i.m}, nil
}

func (i meddledID) Notify(f func(cm.Event)) {
	i.m.mu.Lock()
	i.m.notify[i.ID] = f
	i.m.mu.Unlock()
	i.ID.Notify(func(ev cm.Event) {
		i.m.mu.Lock()
		drop := i.m.drop[ev.Type]
		i.m.mu.Unlock()
		if !drop {
			f(ev)
		}
	})
}

func (i meddledID) Close() error {
	i.m.mu.Lock()
	delete(i.m.notify, i.ID)
	i.m.mu.Unlock()
	return i.ID.Close()
}

type meddledResolved struct {
	meddledID
	resolved cm.Resolved
}

func (r meddledResolved) Connect(ctx context.Context, p cm.ConnParam) (cm.ConnParam, error) {
	if err := r.m.failed(connectID); err != nil {
		return cm.ConnParam{}, err
	}
	return r.resolved.Connect(ctx, p)
}

type meddledRequest struct {
	meddledID
	request cm.Request
}

func (r meddledRequest) Param() cm.ConnParam { return r.request.Param() }

func (r meddledRequest) Reject(private []byte) error { return r.request.Reject(private) }

func (r meddledRequest) Accept(ctx context.Context, p cm.ConnParam) error {
	if err := r.m.failed(acceptID); err != nil {
		return err
	}
	return r.request.Accept(ctx, p)
}

type meddledDevice struct {
	verbs.Device
	m *meddler
}

func (d meddledDevice) AllocPD() (verbs.PD, error) {
	if err := d.m.failed(allocPD); err != nil {
		return nil, err
	}
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return meddledPD{pd, d.m}, nil
}

func (d meddledDevice) CreateCompletionChannel() (verbs.CompletionChannel, error) {
	if err := d.m.failed(createChannel); err != nil {
		return nil, err
	}
	return d.Device.CreateCompletionChannel()
}

func (d meddledDevice) CreateCQ(o verbs.CQOptions) (verbs.CQ, error) {
	if err := d.m.failed(createCQ); err != nil {
		return nil, err
	}
	return d.Device.CreateCQ(o)
}

type meddledPD struct {
	verbs.PD
	m *meddler
}

func (p meddledPD) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	if err := p.m.failed(allocMR); err != nil {
		return nil, err
	}
	return p.PD.AllocMR(size, access)
}

type meddledQP struct {
	verbs.QP
	m *meddler
}

func (q meddledQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.m.failed(postRecv); err != nil {
		return 0, err
	}
	return q.QP.PostRecv(wrs)
}

func (q meddledQP) PostSend(wrs []verbs.SendWR) (int, error) {
	if err := q.m.failed(postSend); err != nil {
		return 0, err
	}
	return q.QP.PostSend(wrs)
}
