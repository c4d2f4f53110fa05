package verbstest

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// network is two hosts with a connection between them, in virtual time.
type network struct {
	*suite
	fab    *Fabric
	ha, hb *Host
	da, db *Device
	ln     cm.Listener
	a, b   *side
}

const latency = 10 * time.Microsecond

// virtually runs a test in virtual time, on two hosts with one connection. It checks at the end that nothing is left.
func virtually(t *testing.T, dc DeviceConfig, z size, f func(t *testing.T, n *network)) {
	synctest.Test(t, func(t *testing.T) {
		fab := NewFabric(Config{Latency: latency, Device: dc})
		t.Cleanup(func() { CheckLeaks(t, fab); fab.Close() })
		n := &network{fab: fab, ha: fab.Host("a", "10.0.0.1"), hb: fab.Host("b", "10.0.0.2")}
		n.suite = &suite{Env{Dial: n.ha, Listen: n.hb, Addr: netip.MustParseAddr("10.0.0.2"), Patience: time.Hour}}
		n.da, n.db = n.ha.Device(0), n.hb.Device(0)
		n.ln = n.suite.listen(t, cm.ListenOptions{})
		n.a, n.b = n.suite.connect(t, n.ln, z)
		n.a.listen()
		n.b.listen()
		f(t, n)
	})
}

var (
	ib    = DeviceConfig{}
	roce  = DeviceConfig{RoCE: true}
	iwarp = DeviceConfig{Transport: verbs.TransportIWARP}
)

// quiet expects that nothing happens on a side, for a long time.
func (e *side) quiet() {
	e.t.Helper()
	time.Sleep(10 * time.Minute)
	require.NoError(e.t, e.poll())
	require.Empty(e.t, e.sends)
	require.Empty(e.t, e.recvs)
	require.Empty(e.t, e.events)
}

// failed expects the next send completion, with a status.
func (e *side) failed(id uint64, status verbs.Status) {
	e.t.Helper()
	wc := e.nextSend()
	require.Equal(e.t, status, wc.Status)
	require.Equal(e.t, id, wc.ID)
}

// kit is what a connection needs; unlike side it is made by calls that may fail.
type kit struct {
	qp     verbs.QP
	cq     verbs.CQ
	ch     verbs.CompletionChannel
	closes []func() error
}

func (k *kit) later(f func() error) { k.closes = append(k.closes, f) }

func (k *kit) close() error {
	var err error
	for i := len(k.closes) - 1; i >= 0; i-- {
		err = errors.Join(err, k.closes[i]())
	}
	return err
}

// equip makes the kit for an ID, which it closes too, with one receive posted.
func (k *kit) equip(id cm.ID) error {
	k.later(id.Close)
	d := id.Device()
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	k.later(pd.Close)
	mr, err := pd.AllocMR(4096, allAccess)
	if err != nil {
		return err
	}
	k.later(mr.Close)
	if k.ch, err = d.CreateCompletionChannel(); err != nil {
		return err
	}
	k.later(k.ch.Close)
	if k.cq, err = d.CreateCQ(verbs.CQOptions{Depth: 8, Channel: k.ch}); err != nil {
		return err
	}
	k.later(k.cq.Close)
	k.qp, err = id.CreateQP(pd, verbs.QPOptions{
		SendCQ: k.cq, RecvCQ: k.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	k.later(k.qp.Close)
	_, err = k.qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}}})
	return err
}

// exchange dials, sends a message, waits until it is there and closes everything again, whatever fails.
func exchange(ctx context.Context, from *Host, to netip.AddrPort) (err error) {
	id, err := from.Resolve(ctx, netip.AddrPort{}, to)
	if err != nil {
		return err
	}
	k := new(kit)
	defer func() { err = errors.Join(err, k.close()) }()
	if err = k.equip(id); err != nil {
		return err
	}
	if _, err = id.Connect(ctx, param()); err != nil {
		return err
	}
	if _, err = k.qp.PostSend([]verbs.SendWR{{ID: 2, Opcode: verbs.OpSend, Flags: verbs.Signaled}}); err != nil {
		return err
	}
	wc := make([]verbs.Completion, 1)
	for {
		n, err := k.cq.Poll(wc)
		if err != nil {
			return err
		}
		if n > 0 {
			return wc[0].Err()
		}
		if err = k.ch.Wait(0); err != nil {
			return err
		}
	}
}

// serve accepts connections until the listener is closed, and closes each when the peer does.
func serve(ctx context.Context, ln cm.Listener) {
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return
		}
		go func() {
			k := new(kit)
			defer k.close()
			if k.equip(req) != nil || req.Accept(ctx, param()) != nil {
				return
			}
			over := make(chan struct{}, 16)
			req.Notify(func(cm.Event) { over <- struct{}{} })
			<-over
		}()
	}
}
