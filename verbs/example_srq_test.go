package verbs_test

import (
	"context"
	"fmt"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// A shared receive queue holds the receives of many connections: a server with a thousand clients posts for the messages that it
// expects, not for each client. The limit event says when to post more.
func ExampleSRQ() {
	ctx := context.Background()
	ln := listen()
	defer ln.Close()

	// The server: one domain, one queue of receives, one completion queue for all connections.
	devices, err := software.Devices()
	check(err)
	dev := devices[0]
	pd, err := dev.AllocPD()
	check(err)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite)
	check(err)
	srq, err := pd.CreateSRQ(verbs.SRQOptions{MaxWR: 16})
	check(err)
	ch, err := dev.CreateCompletionChannel()
	check(err)
	cq, err := dev.CreateCQ(verbs.CQOptions{Depth: 64, Channel: ch})
	check(err)
	server := end{cq: cq, ch: ch} // for wait
	for i := range 4 {
		sge := verbs.SGE{Addr: mr.Addr() + uint64(64*i), Length: 64, LKey: mr.LKey()}
		_, err := srq.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{sge}}})
		check(err)
	}

	few := make(chan struct{}, 1)
	stop := dev.Watch(func(e verbs.AsyncEvent) {
		if e.Type == verbs.EventSRQLimitReached && e.SRQ == srq {
			few <- struct{}{}
		}
	})
	defer stop()
	check(srq.SetLimit(3)) // once, when fewer than three are left

	ids, qps := make([]cm.ID, 2), make([]verbs.QP, 2)
	clients := make(chan *end)
	for i := range qps {
		go func() { clients <- dial(ln.Addr()) }()
		req, err := ln.Accept(ctx)
		check(err)
		qps[i], err = req.CreateQP(pd, verbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
		check(err)
		check(req.Accept(ctx, cm.ConnParam{PrivateData: make([]byte, 12)}))
		client := <-clients
		defer client.close()
		ids[i] = req

		client.postSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: fmt.Appendf(nil, "from client %d", i)})
		wc := server.wait()
		check(wc.Err())
		fmt.Printf("receive %d: %s, %t\n", wc.ID, mr.Bytes()[64*wc.ID:][:wc.ByteLen], wc.QPNum == qps[i].Num())
	}
	<-few
	fmt.Println("fewer than three receives are left")

	for i := range qps {
		check(ids[i].Disconnect())
		check(qps[i].Close())
		check(ids[i].Close())
	}
	check(srq.Close())
	check(cq.Close())
	check(ch.Close())
	check(mr.Close())
	check(pd.Close())
	// Output:
	// receive 0: from client 0, true
	// receive 1: from client 1, true
	// fewer than three receives are left
}
