// Package verbs is the vocabulary of RDMA in Go: devices, protection domains, memory regions, completion queues, queue
// pairs, work requests and completions, under the names that the InfiniBand specification and rdma-core give them.
//
// The package holds plain Go types and the interfaces that a provider implements (the system's devices through
// libibverbs, a device in software, an in-memory fabric for tests). It has no cgo and opens nothing by itself:
// devices come from the root package, rdma, or from a cm.Provider; connections are made by package cm.
//
// # Objects and their order
//
//	Device            a NIC, shared by the whole process, never closed
//	└── PD            protection domain: its MRs, SRQs, AHs and QPs may work together
//	    ├── MR        registered memory, named by lkey (here) and rkey (by the peer)
//	    ├── SRQ       shared receive queue: receives for several QPs
//	    ├── AH        address handle: where a datagram goes
//	    └── QP        queue pair: a send queue and a receive queue, made by a cm.ID, or by the PD to be connected by hand
//	└── CompletionChannel
//	    └── CQ        completion queue: where the results of work requests appear
//
// Objects are closed from the leaves to the root: QP, AH, SRQ, CQ, channel, MR, PD. Closing an object that another one still
// uses fails with ErrBusy and changes nothing; closing twice is harmless. Every method of a closed object
// returns ErrClosed. An object of one provider handed to another is answered with ErrForeign.
//
// # Errors
//
//	ErrNoDevice               no device (or no driver, or no library): the text says what is missing
//	ErrDeviceRemoved          the device went away under the object
//	ErrQueueFull              a send, receive or shared receive queue has no free entry; post again after a completion
//	ErrClosed                 the object was closed; the same value as net.ErrClosed
//	errors.ErrUnsupported     the device cannot do this, an *UnsupportedError; see Capabilities
//	*LimitError               more than the device or the object allows, with the limit; Is syscall.EINVAL
//	*CompletionError          a work request failed, by its completion's Status
//	*MemlockError             registration hit RLIMIT_MEMLOCK; Is syscall.ENOMEM
//	syscall.Errno             all else, wrapped in *os.SyscallError with the call's name
//
// # Concurrency
//
// All methods may be called from several goroutines at once unless they say otherwise. Completions of one CQ are handed
// out once: who polls them owns them.
package verbs
