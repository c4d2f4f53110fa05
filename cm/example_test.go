package cm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"syscall"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// software is the provider of the examples: a device in this process that needs no hardware, no driver and no rights.
var software = rdma.Software(rdma.SoftwareConfig{})

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// queues are the least that a connection needs: a queue pair and where its completions go.
type queues struct {
	pd verbs.PD
	cq verbs.CQ
	qp verbs.QP
}

func newQueues(id cm.ID) (q queues) {
	var err error
	q.pd, err = id.Device().AllocPD() // of the device that serves the address
	check(err)
	q.cq, err = id.Device().CreateCQ(verbs.CQOptions{Depth: 16})
	check(err)
	q.qp, err = id.CreateQP(q.pd, verbs.QPOptions{SendCQ: q.cq, RecvCQ: q.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	check(err)
	return q
}

func (q queues) close() {
	check(q.qp.Close())
	check(q.cq.Close())
	check(q.pd.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Two ends of a connection: what each does, in order. The request and its answer carry private data, which is where programs tell
// each other their memory.
func Example() {
	ctx := context.Background()
	ln, err := software.Listen(loopback, cm.ListenOptions{})
	check(err)
	defer ln.Close()

	served := make(chan struct{})
	go func() {
		defer close(served)
		req, err := ln.Accept(ctx)
		check(err)
		q := newQueues(req)
		fmt.Printf("server: %s\n", req.Param().PrivateData)
		// Receives are posted here, before the peer can send.
		check(req.Accept(ctx, cm.ConnParam{PrivateData: []byte("welcome")}))

		over := make(chan cm.EventType, 1)
		req.Notify(func(e cm.Event) { // must not block
			if e.Ends() {
				select {
				case over <- e.Type:
				default:
				}
			}
		})
		fmt.Println("server:", <-over)
		q.close()
		check(req.Close())
	}()

	id, err := software.Resolve(ctx, netip.AddrPort{}, ln.Addr())
	check(err)
	q := newQueues(id)
	reply, err := id.Connect(ctx, cm.ConnParam{PrivateData: []byte("let me in"), RetryCount: 6, RNRRetryCount: 7})
	check(err)
	fmt.Printf("client: %s\n", reply.PrivateData)
	check(id.Disconnect())
	<-served
	q.close()
	check(id.Close())
	// Output:
	// server: let me in
	// client: welcome
	// server: DISCONNECTED
}

// A server that does not want a connection says so, and why.
func ExampleRejectedError() {
	ctx := context.Background()
	ln, err := software.Listen(loopback, cm.ListenOptions{})
	check(err)
	defer ln.Close()
	go func() {
		req, err := ln.Accept(ctx)
		check(err)
		check(req.Reject([]byte("not on Sundays")))
		check(req.Close())
	}()

	id, err := software.Resolve(ctx, netip.AddrPort{}, ln.Addr())
	check(err)
	defer id.Close()
	q := newQueues(id)
	defer q.close()
	_, err = id.Connect(ctx, cm.ConnParam{})
	fmt.Println(errors.Is(err, syscall.ECONNREFUSED))
	var rejected *cm.RejectedError
	if errors.As(err, &rejected) {
		fmt.Printf("%s\n", rejected.PrivateData)
	}
	// Output:
	// true
	// not on Sundays
}

// The providers are asked in order; one that has no device for the address leaves it to the next. Package rconn does this, and
// more, by itself.
func ExampleProvider() {
	remote := netip.MustParseAddrPort("127.0.0.1:7471")
	for _, p := range rdma.Providers() {
		id, err := p.Resolve(context.Background(), netip.AddrPort{}, remote)
		if errors.Is(err, verbs.ErrNoDevice) {
			continue // the system's devices do not serve loopback
		}
		check(err)
		fmt.Println(p.Name(), id.Device().Name())
		check(id.Close())
		break
	}
	// Output: software software0
}
