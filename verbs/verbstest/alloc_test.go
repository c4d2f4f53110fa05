package verbstest

import (
	"errors"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// Programs can be tested for allocations of their own.
func TestNothingIsAllocatedPerMessage(t *testing.T) {
	for _, dc := range []DeviceConfig{ib, iwarp} {
		virtually(t, dc, size{inline: 64}, func(t *testing.T, n *network) {
			a, b := n.a, n.b
			recv := []verbs.RecvWR{{SGL: b.slot(0)}}
			write := a.writeWR(1, a.sge(0, 100), b, 0)
			read := a.readWR(2, a.sge(200, 100), b, 0)
			send := verbs.SendWR{ID: 3, Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: make([]byte, 64)}
			sends := []verbs.SendWR{write, read, send}
			var wc [8]verbs.Completion
			require.Zero(t, testing.AllocsPerRun(100, func() {
				_, err1 := b.qp.PostRecv(recv)
				_, err2 := a.qp.PostSend(sends)
				if err1 != nil || err2 != nil {
					panic(errors.Join(err1, err2))
				}
				for sent := 0; sent < len(sends); {
					if err := a.ch.Wait(0); err != nil {
						panic(err)
					}
					k, _ := a.sendCQ.Poll(wc[:])
					sent += k
				}
				for received := 0; received < 1; {
					if err := b.ch.Wait(0); err != nil {
						panic(err)
					}
					received, _ = b.recvCQ.Poll(wc[:])
				}
			}))
		})
	}
}

func TestNothingIsAllocatedPerDatagram(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		atHand(t, roce, func(t *testing.T, _ *Fabric, a, b *station) {
			s := b.shared(4)
			join(a, b, a.make(typ, nil), b.make(typ, s))
			send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: a.piece(0, 100)}
			if typ == verbs.UD {
				send.AH, send.RemoteQPNum, send.RemoteQKey = a.handle(b), b.qp.Num(), 0x1234
			}
			sends, recvs := []verbs.SendWR{send}, []verbs.RecvWR{{SGL: b.piece(0, 200)}}
			var wc [4]verbs.Completion
			one := func(e *station) {
				for {
					if n, _ := e.cq.Poll(wc[:]); n > 0 {
						return
					}
					if err := e.ch.Wait(0); err != nil {
						panic(err)
					}
				}
			}
			require.Zero(t, testing.AllocsPerRun(100, func() {
				_, err1 := s.PostRecv(recvs)
				_, err2 := a.qp.PostSend(sends)
				if err1 != nil || err2 != nil {
					panic(errors.Join(err1, err2))
				}
				one(a)
				one(b)
			}))
		})
	}
}
