// Package cm is the vocabulary of RDMA connection management in Go, after the RDMA CM of rdma-core (rdma_cm(7)): a Provider
// resolves addresses and listens, an ID is one end of a connection, events tell what becomes of it. The port space is
// TCP's (RDMA_PS_TCP), the service reliable connected.
//
// A connection is made in this order. The dialing side:
//
//	id, err := provider.Resolve(ctx, local, remote) // which device, which route
//	qp, err := id.CreateQP(pd, options)             // pd, CQs: of id.Device()
//	qp.PostRecv(...)                                // before the peer can send
//	reply, err := id.Connect(ctx, param)
//
// The listening side:
//
//	ln, err := provider.Listen(local, options)
//	req, err := ln.Accept(ctx)
//	qp, err := req.CreateQP(pd, options)
//	qp.PostRecv(...)
//	err = req.Accept(ctx, param)                    // or req.Reject
//
// Then both post work requests, Disconnect, and close QP, CQ, channel, MR, PD and last the ID.
//
// # Errors
//
//	verbs.ErrNoDevice       no RDMA device serves the address
//	*RejectedError          the peer refused; Is syscall.ECONNREFUSED
//	syscall.EHOSTUNREACH    the address did not resolve (no answer to ARP, no such neighbour)
//	syscall.ENETUNREACH     no route
//	syscall.ETIMEDOUT       the peer did not answer
//	syscall.ECONNRESET      the connection ended while it was being made
//	syscall.EADDRINUSE      the port is taken
//	ErrTooManyConnects      the kernel holds as many blocked connects as we let it
//	context's errors        the context ended first
//
// Errors about an address wrap these in an *Error that names the step.
package cm
