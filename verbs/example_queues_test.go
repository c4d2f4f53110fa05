package verbs_test

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// A queue pair is what communicates: a send queue and a receive queue, with room as granted.
func ExampleQP() {
	client, server := connect()
	defer client.close()
	defer server.close()

	attr, err := client.qp.Query()
	check(err)
	fmt.Println(client.qp.Type(), attr.State, client.qp.Cap().MaxSendWR >= 16)

	// The end of a connection moves both queue pairs to the error state; what was posted is flushed.
	check(client.id.Disconnect())
	wc := server.wait() // its receive
	fmt.Println(wc.Status)
	attr, err = server.qp.Query()
	check(err)
	fmt.Println(attr.State)
	// Output:
	// RC RTS true
	// WR_FLUSH_ERR
	// ERR
}

// The send queue takes work requests until it is full. An entry is free again when a later completion was polled, so that some request in
// every queueful must be Signaled.
func ExampleQP_postSend() {
	client, server := connect()
	defer client.close()
	defer server.close()

	write := verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, SGL: client.piece(0, 64), RemoteAddr: client.peerAddr + 1024, RKey: client.peerRKey,
	}
	room := client.qp.Cap().MaxSendWR // 16 were asked for
	for i := range 10 * room {
		write.ID, write.Flags = uint64(i), 0
		last := i%room == room-1
		if last {
			write.Flags = verbs.Signaled
		}
		client.postSend(write)
		if last { // all of the queue is free after this
			wc := client.wait()
			check(wc.Err())
		}
	}

	write.Flags = 0 // and never signaled: the queue fills up for good
	var err error
	for err == nil {
		_, err = client.qp.PostSend([]verbs.SendWR{write})
	}
	fmt.Println(errors.Is(err, verbs.ErrQueueFull))
	// Output: true
}

// The receive queue holds memory for messages that are to come: each SEND of the peer takes the oldest entry. Posting comes first, before
// the peer can send; on iWARP a SEND that finds none ends the connection.
func ExampleQP_postRecv() {
	client, server := connect() // accept has posted receive 0
	defer client.close()
	defer server.close()
	server.postRecv(1)
	server.postRecv(2)

	for _, word := range []string{"one", "two", "three"} {
		client.postSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte(word)})
	}
	for range 3 {
		wc := server.wait()
		check(wc.Err())
		fmt.Printf("receive %d: %s\n", wc.ID, server.mr.Bytes()[64*wc.ID:][:wc.ByteLen])
		server.postRecv(int(wc.ID)) // one taken, one given
	}
	// Output:
	// receive 0: one
	// receive 1: two
	// receive 2: three
}

// A work request says what to do, with which memory, and how to be told. It becomes an entry of the queue, a WQE, when it is posted; several
// in one call cost one call.
func ExampleSendWR() {
	client, server := connect()
	defer client.close()
	defer server.close()
	copy(client.mr.Bytes(), "head")
	copy(client.mr.Bytes()[512:], "body")

	n, err := client.qp.PostSend([]verbs.SendWR{
		{
			ID: 7, Opcode: verbs.OpRDMAWrite, // no completion of its own
			SGL:        append(client.piece(0, 4), client.piece(512, 4)...), // two pieces become one
			RemoteAddr: client.peerAddr + 1024, RKey: client.peerRKey,
		},
		{ID: 8, Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("done")}, // copied before PostSend returns
	})
	fmt.Println(n, err, client.wait().ID)

	wc := server.wait()
	fmt.Printf("%s: %s\n", server.mr.Bytes()[:wc.ByteLen], server.mr.Bytes()[1024:][:8])
	// Output:
	// 2 <nil> 8
	// done: headbody
}

// A completion queue collects the completions of any number of queues. Poll takes many at once, so that their receives can be posted
// again in one call too.
func ExampleCQ() {
	client, server := connect()
	defer client.close()
	defer server.close()
	for i := 1; i < 8; i++ {
		server.postRecv(i)
	}
	for i := range 8 {
		client.postSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte{byte(i)}})
	}

	var wcs [8]verbs.Completion
	var again []verbs.RecvWR
	for taken := 0; taken < 8; {
		n, err := server.cq.Poll(wcs[:])
		check(err)
		if n == 0 {
			check(server.ch.Wait(0))
			continue
		}
		for _, wc := range wcs[:n] {
			check(wc.Err())
			again = append(again, verbs.RecvWR{ID: wc.ID, SGL: server.piece(64*int(wc.ID), 64)})
			fmt.Print(server.mr.Bytes()[64*wc.ID], " ")
		}
		_, err = server.qp.PostRecv(again) // as many as were taken
		check(err)
		taken, again = taken+n, again[:0]
	}
	// Output: 0 1 2 3 4 5 6 7
}

// A completion is looked at in this order: its status; then, and on success only, what it was and what it brought.
func ExampleCompletion() {
	client, server := connect()
	defer client.close()
	defer server.close()

	client.postSend(verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: 2026, Inline: []byte("hello")})
	wc := server.wait()
	check(wc.Err())
	fmt.Println(wc.Opcode, wc.ByteLen, wc.Flags&verbs.WCWithImm != 0, wc.Imm, wc.QPNum == server.qp.Num())

	// A receive that is too short for the message fails.
	_, err := server.qp.PostRecv([]verbs.RecvWR{{ID: 9, SGL: server.piece(0, 4)}})
	check(err)
	client.postSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")})
	wc = server.wait()
	fmt.Println(wc.ID, wc.Err())
	// Output:
	// RECV 5 true 2026 true
	// 9 rdma completion LOC_LEN_ERR: message longer than the posted receive or the path allows
}

// A completion channel is where a goroutine sleeps until a queue has something. Interrupt wakes it for any other reason: here for the end of
// the connection, which may come without a completion.
func ExampleCompletionChannel() {
	client, server := connect()
	defer client.close()
	defer server.close()

	var over atomic.Bool
	server.id.Notify(func(e cm.Event) {
		if e.Ends() {
			over.Store(true)
			server.ch.Interrupt()
		}
	})
	client.postSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("bye")})
	client.wait()
	check(client.id.Disconnect())

	var wcs [4]verbs.Completion
	for {
		ended := over.Load() // before Poll: what has arrived comes before the end
		n, err := server.cq.Poll(wcs[:])
		check(err)
		for _, wc := range wcs[:n] {
			fmt.Println(wc.Opcode, wc.Status)
		}
		if n == 0 && ended {
			break
		}
		if n == 0 {
			check(server.ch.Wait(0))
		}
	}
	// Output: RECV SUCCESS
}

// With SolicitedOnly a queue of many small messages wakes its reader only where the sender said so, here at the third.
func ExampleCQOptions() {
	ln := listen()
	defer ln.Close()
	accepted := make(chan *end)
	go func() { accepted <- accept(ln, verbs.CQOptions{Depth: 64, SolicitedOnly: true}) }()
	client, server := dial(ln.Addr()), <-accepted
	defer client.close()
	defer server.close()
	server.postRecv(1)
	server.postRecv(2)

	client.postSend(
		verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("a")},
		verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("b")},
		verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Solicited, Inline: []byte("c")},
	)
	for range 3 {
		wc := server.wait()
		check(wc.Err())
		fmt.Printf("%s ", server.mr.Bytes()[64*wc.ID:][:wc.ByteLen])
	}
	// Output: a b c
}
