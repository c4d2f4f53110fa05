package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// maxSize is the size of the memory that each side lets the other write, in bytes.
const maxSize = 1 << 20

// depth is the number of receives and of sends that can be outstanding. One at a time is enough for ping and pong.
const depth = 16

// errGone says that the peer has ended the connection, or that we are to.
var errGone = errors.New("the peer has disconnected")

// end is one side of the connection: its objects, and the peer's memory.
type end struct {
	id      cm.ID
	pd      verbs.PD
	channel verbs.CompletionChannel
	cq      verbs.CQ
	qp      verbs.QP
	mr      verbs.MR // maxSize bytes for the peer to write, then 4 bytes for a message where there is no immediate

	peerAddr uint64
	peerRKey uint32

	immediate bool
	sent      int // sends posted since one was signaled
	spin      time.Duration
	gone      atomic.Bool // the connection manager said so, or the context has ended
	stop      func() bool // has the context's end forgotten
}

// newEnd makes the objects and posts the receives, so that nothing the peer sends finds none. The end of ctx wakes receive.
func newEnd(ctx context.Context, id cm.ID, spin time.Duration) (*end, error) {
	e := &end{id: id, spin: spin, immediate: id.Device().Attr().Caps.Send.Has(verbs.OpRDMAWriteWithImm)}
	if err := e.build(); err != nil {
		e.free()
		return nil, err
	}
	e.stop = context.AfterFunc(ctx, e.end)
	return e, nil
}

func (e *end) build() (err error) {
	dev := e.id.Device()
	if e.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if e.mr, err = e.pd.AllocMR(maxSize+4, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return err
	}
	if e.channel, err = dev.CreateCompletionChannel(); err != nil {
		return err
	}
	if e.cq, err = dev.CreateCQ(verbs.CQOptions{Depth: 3 * depth, Channel: e.channel}); err != nil {
		return err
	}
	e.qp, err = e.id.CreateQP(e.pd, verbs.QPOptions{
		SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 2 * depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
	if err != nil {
		return err
	}
	for range depth {
		if err := e.postReceive(); err != nil {
			return err
		}
	}
	e.id.Notify(func(ev cm.Event) {
		if ev.Ends() {
			e.end()
		}
	})
	return nil
}

func (e *end) end() {
	e.gone.Store(true)
	e.channel.Interrupt()
}

// param carries this side's memory to the peer: address and rkey.
func (e *end) param() cm.ConnParam {
	b := binary.BigEndian.AppendUint64(nil, e.mr.Addr())
	b = binary.BigEndian.AppendUint32(b, e.mr.RKey())
	p := cm.ConnParam{PrivateData: b, RetryCount: 6, RNRRetryCount: 7, MinRNRTimer: 1}
	if !e.immediate {
		p.InitiatorDepth = 1 // some iWARP devices read when they connect
	}
	return p
}

func (e *end) setPeer(private []byte) error {
	if len(private) < 12 {
		return fmt.Errorf("%d bytes of private data, want 12: the peer is no ping", len(private))
	}
	e.peerAddr, e.peerRKey = binary.BigEndian.Uint64(private), binary.BigEndian.Uint32(private[8:])
	return nil
}

func (e *end) message() verbs.SGE {
	return verbs.SGE{Addr: e.mr.Addr() + maxSize, Length: 4, LKey: e.mr.LKey()}
}

func (e *end) postReceive() error {
	wr := verbs.RecvWR{}
	if !e.immediate {
		wr.SGL = []verbs.SGE{e.message()}
	}
	_, err := e.qp.PostRecv([]verbs.RecvWR{wr})
	return err
}

// write writes size bytes to the peer's memory and tells it.
func (e *end) write(size int) error {
	write := verbs.SendWR{
		Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(size), RemoteAddr: e.peerAddr, RKey: e.peerRKey,
		SGL: []verbs.SGE{{Addr: e.mr.Addr(), Length: uint32(size), LKey: e.mr.LKey()}},
	}
	wrs := []verbs.SendWR{write}
	if !e.immediate {
		wrs[0].Opcode, wrs[0].Imm = verbs.OpRDMAWrite, 0
		wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpSend, Inline: binary.BigEndian.AppendUint32(nil, uint32(size))})
	}
	// A queue needs a completion now and then to learn which entries are free again.
	if e.sent++; e.sent == depth/2 {
		wrs[len(wrs)-1].Flags, e.sent = verbs.Signaled, 0
	}
	_, err := e.qp.PostSend(wrs)
	return err
}

// receive waits for the peer's write and returns its size.
func (e *end) receive() (int, error) {
	var wcs [1]verbs.Completion
	for {
		gone := e.gone.Load()
		n, err := e.cq.Poll(wcs[:])
		switch {
		case err != nil:
			return 0, err
		case n == 0 && gone:
			return 0, errGone
		case n == 0:
			if err := e.channel.Wait(e.spin); err != nil {
				return 0, err
			}
			continue
		}
		wc := &wcs[0]
		if err := wc.Err(); err != nil {
			if e.gone.Load() || wc.Status == verbs.StatusWRFlushErr {
				return 0, errGone
			}
			return 0, err
		}
		if wc.Opcode < verbs.WCRecv {
			continue // one of our sends
		}
		size := int(wc.Imm)
		if !e.immediate {
			size = int(binary.BigEndian.Uint32(e.mr.Bytes()[maxSize:]))
		}
		if size < 1 || size > maxSize {
			return 0, fmt.Errorf("the peer announced %d bytes", size)
		}
		return size, e.postReceive()
	}
}

func (e *end) close() {
	e.stop()
	_ = e.id.Disconnect()
	e.free()
	_ = e.id.Close()
}

// free closes the objects, users first.
func (e *end) free() {
	if e.qp != nil {
		_ = e.qp.Close()
	}
	if e.cq != nil {
		_ = e.cq.Close()
	}
	if e.channel != nil {
		_ = e.channel.Close()
	}
	if e.mr != nil {
		_ = e.mr.Close()
	}
	if e.pd != nil {
		_ = e.pd.Close()
	}
}
