package verbs_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// software is the provider of the examples: a device in this process that needs no hardware, no driver and no rights.
var software = rdma.Software(rdma.SoftwareConfig{})

// end is one side of a connection with its objects.
type end struct {
	id cm.ID // nil if connected by hand
	pd verbs.PD
	mr verbs.MR // a page that the peer may write, read and change by atomics
	ch verbs.CompletionChannel
	cq verbs.CQ
	qp verbs.QP

	peerAddr uint64 // the peer's mr
	peerRKey uint32
}

// newEnd makes the objects of one side: memory, a completion queue, and the queue pair, which belongs to the connection.
func newEnd(id cm.ID, o verbs.CQOptions) *end {
	e := &end{id: id}
	var err error
	e.pd, err = id.Device().AllocPD()
	check(err)
	e.mr, err = e.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	check(err)
	e.ch, err = id.Device().CreateCompletionChannel()
	check(err)
	o.Channel = e.ch
	e.cq, err = id.Device().CreateCQ(o)
	check(err)
	e.qp, err = id.CreateQP(e.pd, verbs.QPOptions{
		SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: 64},
	})
	check(err)
	return e
}

// param tells the peer where this side's memory is: its address and rkey.
func (e *end) param() cm.ConnParam {
	private := binary.BigEndian.AppendUint64(nil, e.mr.Addr())
	private = binary.BigEndian.AppendUint32(private, e.mr.RKey())
	return cm.ConnParam{PrivateData: private, ResponderResources: 4, InitiatorDepth: 4, RetryCount: 6, RNRRetryCount: 7}
}

func (e *end) setPeer(p cm.ConnParam) {
	e.peerAddr = binary.BigEndian.Uint64(p.PrivateData)
	e.peerRKey = binary.BigEndian.Uint32(p.PrivateData[8:])
}

func listen() cm.Listener {
	ln, err := software.Listen(netip.MustParseAddrPort("127.0.0.1:0"), cm.ListenOptions{})
	check(err)
	return ln
}

// dial makes the one end of a connection, accept the other.
func dial(addr netip.AddrPort) *end {
	ctx := context.Background()
	id, err := software.Resolve(ctx, netip.AddrPort{}, addr)
	check(err)
	e := newEnd(id, verbs.CQOptions{Depth: 64})
	reply, err := id.Connect(ctx, e.param())
	check(err)
	e.setPeer(reply)
	return e
}

func accept(ln cm.Listener, o verbs.CQOptions) *end {
	ctx := context.Background()
	req, err := ln.Accept(ctx)
	check(err)
	e := newEnd(req, o)
	e.setPeer(req.Param())
	e.postRecv(0) // before the peer can send
	check(req.Accept(ctx, e.param()))
	return e
}

// connect makes both ends of a connection.
func connect() (client, server *end) {
	ln := listen()
	defer ln.Close()
	accepted := make(chan *end)
	go func() { accepted <- accept(ln, verbs.CQOptions{Depth: 64}) }()
	return dial(ln.Addr()), <-accepted
}

// piece is a part of the end's memory, for a work request.
func (e *end) piece(offset, length int) []verbs.SGE {
	return []verbs.SGE{{Addr: e.mr.Addr() + uint64(offset), Length: uint32(length), LKey: e.mr.LKey()}}
}

// postRecv has the next message go to the 64 bytes at 64 times id.
func (e *end) postRecv(id int) {
	_, err := e.qp.PostRecv([]verbs.RecvWR{{ID: uint64(id), SGL: e.piece(64*id, 64)}})
	check(err)
}

func (e *end) postSend(wrs ...verbs.SendWR) {
	_, err := e.qp.PostSend(wrs)
	check(err)
}

// wait returns the next completion. Wait says that there may be some, Poll takes them.
func (e *end) wait() verbs.Completion {
	var wc [1]verbs.Completion
	for {
		n, err := e.cq.Poll(wc[:])
		check(err)
		if n > 0 {
			return wc[0]
		}
		check(e.ch.Wait(0))
	}
}

// close ends the connection and frees the objects, users first.
func (e *end) close() {
	if e.id != nil {
		check(e.id.Disconnect())
	}
	check(e.qp.Close()) // from here on the device does not touch the memory
	check(e.cq.Close())
	check(e.ch.Close())
	check(e.mr.Close())
	check(e.pd.Close())
	if e.id != nil {
		check(e.id.Close())
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// An RDMA WRITE from beginning to end, on the software device.
func Example_write() {
	// Each end registers memory and tells the other its address and rkey; the server has also posted a receive.
	client, server := connect()
	defer client.close()
	defer server.close()

	// The client puts bytes into its own memory, and posts two work requests: one that writes them into the server's memory, at
	// offset 1024, and one that tells the server's program.
	n := copy(client.mr.Bytes(), "written from afar")
	write := verbs.SendWR{
		ID: 1, Opcode: verbs.OpRDMAWrite,
		SGL:        []verbs.SGE{{Addr: client.mr.Addr(), Length: uint32(n), LKey: client.mr.LKey()}},
		RemoteAddr: client.peerAddr + 1024,
		RKey:       client.peerRKey,
	}
	tell := verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte{byte(n)}}
	_, err := client.qp.PostSend([]verbs.SendWR{write, tell})
	check(err)

	// The devices do the rest. The client has one completion, since it has asked for one: it covers the WRITE too.
	wc := client.wait()
	fmt.Println("client:", wc.ID, wc.Opcode, wc.Err())

	// The server has one for its receive. What was written before the SEND is in its memory now.
	wc = server.wait()
	fmt.Println("server:", wc.Opcode, wc.ByteLen, wc.Err())
	length := int(server.mr.Bytes()[0])
	fmt.Printf("server: %s\n", server.mr.Bytes()[1024:][:length])

	// Output:
	// client: 2 SEND <nil>
	// server: RECV 1 <nil>
	// server: written from afar
}
