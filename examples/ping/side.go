package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/verbs"
)

// maxSize is the size of the memory that each side lets the other write, in bytes.
const maxSize = 1 << 20

// depth is the number of receives and of sends that can be outstanding. One at a time is enough for ping and pong.
const depth = 16

// side is one side of the connection: its objects, and the peer's memory.
type side struct {
	conn    *end.Conn
	objects *end.Objects // maxSize bytes for the peer to write, then 4 bytes for a message where there is no immediate
	forget  func() bool

	peerAddr uint64
	peerRKey uint32

	immediate bool
	sent      int // sends posted since one was signaled
}

// newSide makes the objects and posts the receives, so that nothing the peer sends finds none. The end of ctx wakes receive.
func newSide(ctx context.Context, id cm.ID, spin time.Duration) (*side, error) {
	dev := id.Device()
	objects, err := end.NewObjects(dev, maxSize+4, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, 3*depth)
	if err != nil {
		return nil, err
	}
	objects.Spin = spin
	conn, err := end.NewConn(ctx, id, objects.PD, verbs.QPOptions{
		SendCQ: objects.CQ, RecvCQ: objects.CQ,
		Cap: verbs.QPCap{MaxSendWR: 2 * depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
	if err != nil {
		return nil, errors.Join(err, objects.Close())
	}
	s := &side{
		conn: conn, objects: objects, forget: objects.WakeAtEnd(conn.Gone()),
		immediate: dev.Attr().Caps.Send.Has(verbs.OpRDMAWriteWithImm),
	}
	for range depth {
		if err := s.postReceive(); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// param carries this side's memory to the peer: address and rkey.
func (s *side) param() cm.ConnParam {
	b := binary.BigEndian.AppendUint64(nil, s.objects.MR.Addr())
	b = binary.BigEndian.AppendUint32(b, s.objects.MR.RKey())
	p := cm.ConnParam{PrivateData: b, RetryCount: 6, RNRRetryCount: 7, MinRNRTimer: 1}
	if !s.immediate {
		p.InitiatorDepth = 1 // some iWARP devices read when they connect
	}
	return p
}

func (s *side) setPeer(private []byte) error {
	if len(private) < 12 {
		return fmt.Errorf("%d bytes of private data, want 12: the peer is no ping", len(private))
	}
	s.peerAddr, s.peerRKey = binary.BigEndian.Uint64(private), binary.BigEndian.Uint32(private[8:])
	return nil
}

func (s *side) postReceive() error {
	wr := verbs.RecvWR{}
	if !s.immediate {
		wr.SGL = s.objects.SGE(maxSize, 4)
	}
	_, err := s.conn.QP.PostRecv([]verbs.RecvWR{wr})
	return err
}

// write writes size bytes to the peer's memory and tells it.
func (s *side) write(size int) error {
	write := verbs.SendWR{
		Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(size), RemoteAddr: s.peerAddr, RKey: s.peerRKey,
		SGL: s.objects.SGE(0, size),
	}
	wrs := []verbs.SendWR{write}
	if !s.immediate {
		wrs[0].Opcode, wrs[0].Imm = verbs.OpRDMAWrite, 0
		wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpSend, Inline: binary.BigEndian.AppendUint32(nil, uint32(size))})
	}
	// A queue needs a completion now and then to learn which entries are free again.
	if s.sent++; s.sent == depth/2 {
		wrs[len(wrs)-1].Flags, s.sent = verbs.Signaled, 0
	}
	_, err := s.conn.QP.PostSend(wrs)
	return err
}

// receive waits for the peer's write and returns its size.
func (s *side) receive() (int, error) {
	var wcs [1]verbs.Completion
	for {
		if _, err := s.objects.Wait(s.conn.Gone(), wcs[:]); err != nil {
			return 0, err
		}
		wc := &wcs[0]
		if wc.Status == verbs.StatusWRFlushErr {
			return 0, end.ErrGone
		}
		if err := wc.Err(); err != nil {
			return 0, err
		}
		if wc.Opcode < verbs.WCRecv {
			continue // one of our sends
		}
		size := int(wc.Imm)
		if !s.immediate {
			size = int(binary.BigEndian.Uint32(s.objects.MR.Bytes()[maxSize:]))
		}
		if size < 1 || size > maxSize {
			return 0, fmt.Errorf("the peer announced %d bytes", size)
		}
		return size, s.postReceive()
	}
}

func (s *side) close() {
	s.forget()
	_ = s.conn.Close()
	_ = s.objects.Close()
}
