// Package rdmacore is the provider of the system's RDMA devices: verbs and cm over libibverbs and librdmacm. It is the only
// package with cgo.
//
// # How it is built
//
// The C side (shim.h) is a layer of static inline functions on scalars and flat structs. Library functions are found with dlsym on
// first use, so a program starts without rdma-core and then says what is missing. Without cgo, on other systems, and without
// the -dev headers the package builds too; its provider then only has errors.
//
// # Goroutines and threads
//
// Nothing waits in C for long. Completion channels, the CM's event channel and a device's events are non-blocking file
// descriptors in the runtime's poller; a few waits for completions may sleep in C for a moment before they park (nap.go). One goroutine, started with the first connection and never stopped, takes the CM's events;
// one goroutine per device takes its asynchronous events while somebody watches. Calls that may block in the kernel run
// under a bound (limits.go), so that many connections need few threads.
//
// # Locks
//
// A child holds a reference to its parents (refs.go), so that closing in the wrong order is ErrBusy. From the outside in:
// id.op (one C call at a time on a cm id), the slots of limits.go, channel.mu, cq.mu, cmCore.events (taking events against taking a
// QP from librdmacm), machine.mu and device.mu.
package rdmacore
