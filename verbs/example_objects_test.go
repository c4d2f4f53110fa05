package verbs_test

import (
	"errors"
	"fmt"
	"os"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/verbs"
)

// A device says what it can do. rdma.Devices lists all; the software device is always there.
func ExampleDevice() {
	device, err := rdma.Open("software0")
	check(err)
	attr := device.Attr()
	fmt.Println(attr.Transport, attr.Ports)
	fmt.Println("READ:", attr.Caps.Send.Has(verbs.OpRDMARead))
	fmt.Println("UD:", attr.Caps.QPTypes.Has(verbs.UD))

	port, err := device.Port(1)
	check(err)
	fmt.Println(port.State, port.Link)
	// Output:
	// iWARP 1
	// READ: true
	// UD: false
	// ACTIVE Ethernet
}

// A protection domain keeps apart what is not to touch each other: a queue pair of one does not reach memory of another. It is
// closed last.
func ExamplePD() {
	devices, err := software.Devices()
	check(err)
	pd, err := devices[0].AllocPD()
	check(err)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite)
	check(err)

	fmt.Println(errors.Is(pd.Close(), verbs.ErrBusy)) // the region is there
	fmt.Println(mr.Close(), pd.Close())
	// Output:
	// true
	// <nil> <nil>
}

// A memory region is memory that the device may touch, the addresses at which it does, and the keys that say who may.
func ExampleMR() {
	devices, err := software.Devices()
	check(err)
	pd, err := devices[0].AllocPD()
	check(err)
	defer pd.Close()

	mr, err := pd.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
	check(err)
	defer mr.Close()
	copy(mr.Bytes()[4096:], "the second page")

	// This side's work requests name the second page so; what the peer is told is the address and the rkey.
	sge := verbs.SGE{Addr: mr.Addr() + 4096, Length: 15, LKey: mr.LKey()}
	remoteAddr, rkey := mr.Addr()+4096, mr.RKey()
	fmt.Println(sge.Addr == remoteAddr, sge.Length, rkey != 0, len(mr.Bytes()))
	// Output: true 15 true 8192
}

// The lkey goes with every piece of this side's own memory. A key that does not fit is found by this side's device, and ends the
// queue pair.
func ExampleMR_lKey() {
	client, server := connect()
	defer client.close()
	defer server.close()

	sgl := client.piece(0, 5)
	sgl[0].LKey = server.mr.LKey() // of another protection domain
	client.postSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: sgl})

	wc := client.wait()
	fmt.Println(wc.Status)
	// Output: LOC_PROT_ERR
}

// The rkey goes with every address of the peer's memory. Whoever has it can use the memory as its access flags say: a wrong
// one is refused by the peer's device, which ends the connection.
func ExampleMR_rKey() {
	client, server := connect()
	defer client.close()
	defer server.close()
	copy(server.mr.Bytes(), "secret")

	read := verbs.SendWR{
		Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: client.piece(0, 6),
		RemoteAddr: client.peerAddr, RKey: client.peerRKey,
	}
	client.postSend(read)
	wc := client.wait()
	fmt.Printf("%v, %q\n", wc.Status, client.mr.Bytes()[:6])

	clear(client.mr.Bytes())
	read.RKey++
	client.postSend(read)
	wc = client.wait()
	fmt.Printf("%v, %q\n", wc.Status, client.mr.Bytes()[:6])
	// Output:
	// SUCCESS, "secret"
	// REM_ACCESS_ERR, "\x00\x00\x00\x00\x00\x00"
}

// Memory of the caller's is registered where it is: what a library handed over, or a file in memory, is sent without a copy.
func ExamplePD_regMR() {
	client, server := connect()
	defer client.close()
	defer server.close()

	message := []byte("from Go's heap") // kept and pinned until the region is closed
	mr, err := client.pd.RegMR(message, verbs.AccessLocalWrite)
	check(err)
	client.postSend(verbs.SendWR{
		Opcode: verbs.OpSend, Flags: verbs.Signaled,
		SGL: []verbs.SGE{{Addr: mr.Addr(), Length: uint32(len(message)), LKey: mr.LKey()}},
	})
	wc := client.wait() // message must not change before
	check(wc.Err())
	check(mr.Close())

	wc = server.wait()
	fmt.Printf("%s\n", server.mr.Bytes()[:wc.ByteLen])
	// Output: from Go's heap
}

// What a device lacks is in its capabilities, and an error that says so.
func ExampleUnsupportedError() {
	devices, err := software.Devices()
	check(err)
	pd, err := devices[0].AllocPD()
	check(err)
	defer pd.Close()

	_, err = pd.CreateAH(verbs.AHAttr{Port: 1})
	fmt.Println(errors.Is(err, errors.ErrUnsupported))
	fmt.Println(err)
	// Output:
	// true
	// RDMA device software0 does not support address handles
}

// RLIMIT_MEMLOCK bounds what a process may register on the system's devices; the error says what to do.
func ExampleMemlockError() {
	devices, err := rdma.Devices()
	check(err)
	pd, err := devices[0].AllocPD()
	check(err)
	defer pd.Close()

	mr, err := pd.AllocMR(64<<20, verbs.AccessLocalWrite)
	var memlock *verbs.MemlockError
	if errors.As(err, &memlock) {
		fmt.Fprintln(os.Stderr, memlock) // cannot register 67108864 bytes: locked memory is limited to 8388608 bytes (RLIMIT_MEMLOCK); ...
		return
	}
	check(err)
	check(mr.Close())
}
