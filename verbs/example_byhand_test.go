package verbs_test

import (
	"fmt"

	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// newHand makes the objects of one side that no RDMA CM connects.
func newHand(dev verbs.Device, t verbs.QPType) *end {
	e := new(end)
	var err error
	e.pd, err = dev.AllocPD()
	check(err)
	e.mr, err = e.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	check(err)
	e.ch, err = dev.CreateCompletionChannel()
	check(err)
	e.cq, err = dev.CreateCQ(verbs.CQOptions{Depth: 16, Channel: e.ch})
	check(err)
	e.qp, err = e.pd.CreateQP(verbs.QPOptions{
		Type: t, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	check(err)
	return e
}

// twoDevices are two InfiniBand devices on one wire, in memory.
func twoDevices() (a, b verbs.Device) {
	fabric := verbstest.NewFabric(verbstest.Config{})
	devices, err := fabric.Host("a", "10.0.0.1").Devices()
	check(err)
	a = devices[0]
	devices, err = fabric.Host("b", "10.0.0.2").Devices()
	check(err)
	return a, devices[0]
}

// Two queue pairs connected without the RDMA CM: each end tells the other its Endpoint (QP number, PSN, LID, GID) by some other way, here in
// one program. The devices are those of the in-memory fabric; RoCE and InfiniBand devices do the same, iWARP ones cannot.
func ExampleByHand() {
	devA, devB := twoDevices()
	a, b := newHand(devA, verbs.RC), newHand(devB, verbs.RC)
	defer a.close()
	defer b.close()

	handA := verbs.ByHand{PSN: 0x1a2b3c}
	handB := verbs.ByHand{PSN: 0x4d5e6f, Access: verbs.AccessRemoteWrite} // what the peer may do
	check(handA.Init(a.qp))
	check(handB.Init(b.qp))
	_, err := b.qp.PostRecv([]verbs.RecvWR{{SGL: b.piece(0, 64)}})
	check(err)

	// Exchanged by a TCP connection, as ibv_rc_pingpong does, or a file.
	endA, err := handA.Local(devA, a.qp)
	check(err)
	endB, err := handB.Local(devB, b.qp)
	check(err)
	check(handA.Connect(a.qp, endB))
	check(handB.Connect(b.qp, endA)) // and each end waits until the other is here, too

	attr, err := a.qp.Query()
	check(err)
	fmt.Printf("%v, packets from %#x\n", attr.State, attr.SQPSN)

	n := copy(a.mr.Bytes(), "by hand")
	_, err = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: a.piece(0, n)}})
	check(err)
	wc := b.wait()
	check(wc.Err())
	fmt.Printf("%s\n", b.mr.Bytes()[:wc.ByteLen])
	// Output:
	// RTS, packets from 0x1a2b3c
	// by hand
}

// A UD queue pair is connected to nobody: an address handle says where a SEND goes, with the QP number and the key of who is to
// have it. A receive holds 40 bytes for the route before the payload, and its completion says where it came from.
func ExampleAH() {
	devA, devB := twoDevices()
	a, b := newHand(devA, verbs.UD), newHand(devB, verbs.UD)
	defer a.close()
	defer b.close()

	hand := verbs.ByHand{QKey: 0x11111111}
	for _, qp := range []verbs.QP{a.qp, b.qp} {
		check(hand.Init(qp))
		check(hand.Connect(qp, verbs.Endpoint{})) // a UD queue pair has no peer
	}
	_, err := b.qp.PostRecv([]verbs.RecvWR{{SGL: b.piece(0, verbs.GRHSize+64)}})
	check(err)

	to, err := hand.Local(devB, b.qp) // what b tells a, by some other way
	check(err)
	ah, err := a.pd.CreateAH(hand.Path(to))
	check(err)
	n := copy(a.mr.Bytes(), "datagram")
	_, err = a.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: a.piece(0, n),
		AH: ah, RemoteQPNum: to.QPNum, RemoteQKey: 0x11111111,
	}})
	check(err)
	wc := a.wait() // it is on its way; nobody says whether it arrives
	check(wc.Err())
	check(ah.Close())

	wc = b.wait()
	check(wc.Err())
	fmt.Printf("%s, from the sender: %t\n", b.mr.Bytes()[verbs.GRHSize:wc.ByteLen], wc.SrcQPNum == a.qp.Num())
	// Output: datagram, from the sender: true
}
