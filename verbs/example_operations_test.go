package verbs_test

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rconn/rdma/verbs"
)

// SEND and RECV: a request and its answer. Both programs take part, and each posts the receive before it asks.
func Example_send() {
	client, server := connect() // the server has posted a receive
	defer client.close()
	defer server.close()

	client.postRecv(0)
	client.postSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("GET colour")})

	wc := server.wait()
	check(wc.Err())
	fmt.Printf("server: %s\n", server.mr.Bytes()[:wc.ByteLen])
	server.postRecv(0) // for the next request, before the answer allows it
	server.postSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("blue")})

	wc = client.wait()
	check(wc.Err())
	fmt.Printf("client: %s\n", client.mr.Bytes()[:wc.ByteLen])
	// Output:
	// server: GET colour
	// client: blue
}

// WRITE WITH IMM writes and tells the peer's program in one: it uses up a receive, whose completion has the immediate and the number of
// bytes. The receive needs no memory.
func Example_writeWithImmediate() {
	client, server := connect()
	defer client.close()
	defer server.close()

	n := copy(client.mr.Bytes(), "block 5")
	client.postSend(verbs.SendWR{
		Opcode: verbs.OpRDMAWriteWithImm, Imm: 1024, // our own meaning: the offset
		SGL: client.piece(0, n), RemoteAddr: client.peerAddr + 1024, RKey: client.peerRKey,
	})

	wc := server.wait()
	check(wc.Err())
	fmt.Printf("%v at %d: %s\n", wc.Opcode, wc.Imm, server.mr.Bytes()[wc.Imm:][:wc.ByteLen])
	// Output: RECV_RDMA_WITH_IMM at 1024: block 5
}

// READ brings bytes from the peer's memory. The peer's program does nothing and learns nothing.
func Example_read() {
	client, server := connect()
	defer client.close()
	defer server.close()
	n := copy(server.mr.Bytes()[2048:], "parameters of epoch 3")

	client.postSend(verbs.SendWR{
		Opcode: verbs.OpRDMARead, Flags: verbs.Signaled,
		SGL: client.piece(0, n), RemoteAddr: client.peerAddr + 2048, RKey: client.peerRKey,
	})
	wc := client.wait() // the bytes are here now, and not before
	check(wc.Err())
	fmt.Printf("%v of %d bytes: %s\n", wc.Opcode, wc.ByteLen, client.mr.Bytes()[:wc.ByteLen])
	// Output: RDMA_READ of 21 bytes: parameters of epoch 3
}

// FETCH AND ADD: a counter at the server, which hands out numbers to any number of clients.
func Example_fetchAndAdd() {
	client, server := connect()
	defer client.close()
	defer server.close()

	for range 3 {
		client.postSend(verbs.SendWR{
			Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.Signaled, CompareAdd: 1,
			SGL: client.piece(0, 8), RemoteAddr: client.peerAddr + 512, RKey: client.peerRKey,
		})
		wc := client.wait()
		check(wc.Err())
		fmt.Println("number", binary.NativeEndian.Uint64(client.mr.Bytes()))
	}
	// Output:
	// number 0
	// number 1
	// number 2
}

// COMPARE AND SWAP: a lock at the server, 0 when it is free. What was there before says whether the swap was made.
func Example_compareAndSwap() {
	client, server := connect()
	defer client.close()
	defer server.close()

	lock := func(owner uint64) bool {
		client.postSend(verbs.SendWR{
			Opcode: verbs.OpAtomicCmpAndSwp, Flags: verbs.Signaled, CompareAdd: 0, Swap: owner,
			SGL: client.piece(0, 8), RemoteAddr: client.peerAddr + 512, RKey: client.peerRKey,
		})
		wc := client.wait()
		check(wc.Err())
		return binary.NativeEndian.Uint64(client.mr.Bytes()) == 0
	}
	fmt.Println(lock(41))
	fmt.Println(lock(42)) // 41 has it
	// Output:
	// true
	// false
}

// SEND with invalidate gives a key back: the peer's region cannot be reached by it any more when the receive completes.
func Example_sendWithInvalidate() {
	client, server := connect()
	defer client.close()
	defer server.close()

	client.postSend(verbs.SendWR{
		Opcode: verbs.OpSendWithInv, InvalidateRKey: client.peerRKey, Inline: []byte("done with it"),
	})
	wc := server.wait()
	check(wc.Err())
	fmt.Println(wc.Flags&verbs.WCWithInv != 0, wc.InvalidatedRKey == server.mr.RKey())

	client.postSend(verbs.SendWR{
		Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: client.piece(0, 8), RemoteAddr: client.peerAddr, RKey: client.peerRKey,
	})
	wc = client.wait()
	fmt.Println(wc.Status)
	// Output:
	// true true
	// REM_ACCESS_ERR
}

// Fence: the WRITE sends on what the READ before it brought, so it waits for the READ. Without the flag it might take the old bytes.
func ExampleSendFlags() {
	client, server := connect()
	defer client.close()
	defer server.close()
	copy(server.mr.Bytes()[1024:], "copied")

	client.postSend(
		verbs.SendWR{
			ID: 1, Opcode: verbs.OpRDMARead,
			SGL: client.piece(0, 6), RemoteAddr: client.peerAddr + 1024, RKey: client.peerRKey,
		},
		verbs.SendWR{
			ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.Fence,
			SGL: client.piece(0, 6), RemoteAddr: client.peerAddr + 2048, RKey: client.peerRKey,
		},
		verbs.SendWR{ID: 3, Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("look")},
	)
	wc := client.wait()
	fmt.Println(wc.ID, wc.Err())
	wc = server.wait()
	check(wc.Err())
	fmt.Printf("%s\n", server.mr.Bytes()[2048:][:6])
	// Output:
	// 3 <nil>
	// copied
}

// A request that fails says why in its completion; those behind it are flushed. CompletionErrors compare by status.
func ExampleCompletionError() {
	client, server := connect()
	defer client.close()
	defer server.close()

	client.postSend(
		verbs.SendWR{
			ID: 1, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled,
			SGL: client.piece(0, 8), RemoteAddr: client.peerAddr + 4095, RKey: client.peerRKey, // beyond the end
		},
		verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.Fence, Inline: []byte("never sent")},
	)
	for range 2 {
		wc := client.wait()
		err := wc.Err()
		switch {
		case errors.Is(err, &verbs.CompletionError{Status: verbs.StatusRemAccessErr}):
			fmt.Println(wc.ID, "the peer's memory is not ours to read there")
		case errors.Is(err, &verbs.CompletionError{Status: verbs.StatusWRFlushErr}):
			fmt.Println(wc.ID, "flushed")
		default:
			fmt.Println(wc.ID, err)
		}
	}
	// Output:
	// 1 the peer's memory is not ours to read there
	// 2 flushed
}
