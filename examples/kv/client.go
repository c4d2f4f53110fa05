package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/verbs"
)

// keys is how many a client uses.
const keys = 32

// user is a client: one connection, with several requests outstanding.
type user struct {
	conn    *end.Conn
	objects *end.Objects // window slots for answers, then 2*window for requests
	forget  func() bool
	window  int
	number  uint64 // of the client

	sent, completed, answered uint64
	versions                  [keys]uint64 // what was PUT last
	expected                  []expectation
	count                     *atomic.Int64 // of answers, for whoever tells the rate
}

// expectation is the request that an answer belongs to.
type expectation struct{ op, key, version uint64 }

// dial connects. Without credits it has window requests outstanding whatever the server has granted.
func dial(ctx context.Context, addr netip.AddrPort, window int, credits bool, count *atomic.Int64) (*user, error) {
	id, err := end.Resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	u := &user{window: window, expected: make([]expectation, window), count: count}
	if u.objects, err = end.NewObjects(id.Device(), 3*window*slotSize, verbs.AccessLocalWrite, 3*window); err != nil {
		return nil, errors.Join(err, id.Close())
	}
	u.conn, err = end.NewConn(ctx, id, u.objects.PD, verbs.QPOptions{
		SendCQ: u.objects.CQ, RecvCQ: u.objects.CQ, SignalAll: true,
		Cap: verbs.QPCap{MaxSendWR: 2 * window, MaxRecvWR: window, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return nil, errors.Join(err, u.objects.Close(), id.Close())
	}
	u.forget = u.objects.WakeAtEnd(u.conn.Gone())
	slots := make([]int, window)
	for i := range slots {
		slots[i] = i
	}
	if err := u.receive(slots); err != nil {
		return nil, errors.Join(err, u.close())
	}
	reply, err := id.Connect(ctx, end.Param(nil))
	var hello welcome
	var refused *cm.RejectedError
	switch {
	case err == nil:
		err = hello.parse(reply.PrivateData)
	case errors.As(err, &refused):
		err = fmt.Errorf("%w: %s", err, bytes.TrimRight(refused.PrivateData, "\x00"))
	}
	if err != nil {
		return nil, errors.Join(err, u.close())
	}
	u.number = uint64(hello.client)
	if credits {
		u.window = min(window, int(hello.credits))
	}
	return u, nil
}

func (u *user) slot(i int) message { return u.objects.MR.Bytes()[i*slotSize:][:slotSize] }

func (u *user) receive(slots []int) error {
	wrs := make([]verbs.RecvWR, len(slots))
	for i, slot := range slots {
		wrs[i] = verbs.RecvWR{ID: uint64(slot), SGL: u.objects.SGE(slot*slotSize, slotSize)}
	}
	_, err := u.conn.QP.PostRecv(wrs)
	return err
}

// run keeps as many requests outstanding as it may until the time has come, and waits for the last answers.
func (u *user) run(until time.Time) error {
	var wcs [batch]verbs.Completion
	for {
		if err := u.request(time.Now().Before(until)); err != nil {
			return err
		}
		if u.answered == u.sent {
			return nil
		}
		n, err := u.objects.Wait(u.conn.Gone(), wcs[:])
		if err != nil {
			return err
		}
		if err := u.take(wcs[:n]); err != nil {
			return err
		}
	}
}

// request posts what there is room for: in the window, and in the memory of requests that the device has done with.
func (u *user) request(more bool) error {
	var wrs []verbs.SendWR
	slots := uint64(2 * len(u.expected))
	for more && u.sent-u.answered < uint64(u.window) && u.sent-u.completed < slots {
		slot := len(u.expected) + int(u.sent%slots)
		size := u.next(u.slot(slot))
		wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpSend, SGL: u.objects.SGE(slot*slotSize, size)})
		u.sent++
	}
	if len(wrs) == 0 {
		return nil
	}
	_, err := u.conn.QP.PostSend(wrs)
	return err
}

// next makes a request: one PUT, three GETs, and what they are to bring.
func (u *user) next(m message) (size int) {
	i := u.sent / 4 % keys
	x := expectation{op: opGet, key: u.number<<32 | i}
	size = headerSize
	if u.sent%4 == 0 {
		x.op = opPut
		u.versions[i]++
		fillValue(m.value(), x.key, u.versions[i])
		size = slotSize
	}
	x.version = u.versions[i]
	m.setHeader(u.sent, x.op, x.key)
	u.expected[u.sent%uint64(len(u.expected))] = x
	return size
}

// take looks at completions. Answers come in the order of the requests. Receives are posted before the next requests: the
// server shall not run out of them here either.
func (u *user) take(wcs []verbs.Completion) error {
	var used []int
	for _, wc := range wcs {
		if err := wc.Err(); err != nil {
			return err
		}
		if wc.Opcode == verbs.WCSend {
			u.completed++
			continue
		}
		if err := u.check(u.slot(int(wc.ID)), int(wc.ByteLen)); err != nil {
			return err
		}
		u.answered++
		u.count.Add(1)
		used = append(used, int(wc.ID))
	}
	if len(used) == 0 {
		return nil
	}
	return u.receive(used)
}

func (u *user) check(m message, size int) error {
	x := u.expected[u.answered%uint64(len(u.expected))]
	switch {
	case size < headerSize || m.number() != u.answered || m.key() != x.key:
		return fmt.Errorf("want the answer to request %d", u.answered)
	case x.op == opPut:
		return nil
	case size != slotSize || m.op() != 1:
		return fmt.Errorf("key %d is missing", x.key)
	}
	return checkValue(m.value(), x.key, x.version)
}

func (u *user) close() error {
	u.forget()
	return errors.Join(u.conn.Close(), u.objects.Close())
}
