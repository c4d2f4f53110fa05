// Package verbstest is for tests. It has two parts: an in-memory network of RDMA devices, which implements the interfaces
// of packages verbs and cm and can be made to fail in every way that real networks do; and the conformance suite, Run, that
// every provider must pass.
//
// # The fabric
//
//	fab := verbstest.NewFabric(verbstest.Config{Latency: 10 * time.Microsecond})
//	defer fab.Close()
//	a := fab.Host("a", "10.0.0.1") // a cm.Provider with one device
//	b := fab.Host("b", "10.0.0.2")
//	ln, err := b.Listen(...)
//	id, err := a.Resolve(...)
//	...
//	verbstest.CheckLeaks(t, fab)
//
// It is strict where devices are, and fair where they are not: completions come as late as they can, send queue entries are free only
// after a later completion was polled, memory is read when a request is executed and not before, addresses and keys that are mixed up
// never happen to fit, nor do packet sequence numbers. Rules that a program must keep but no device checks are recorded, see
// Fabric.Violations. It works in virtual time under testing/synctest; then everything takes the time that Latency and the protocol's
// timers say, and nothing else.
//
// Its InfiniBand devices (RoCE, if DeviceConfig says so) have every type of QP and every operation of package verbs, but for SEND with
// invalidate, which DeviceConfig.Attr can add, and memory windows. Where devices differ it is as Linux's Soft-RoCE: 7 retries are for ever, UC and UD drop what is longer than the
// receive. Where that would hide a mistake it is not: an RC packet with a PSN from the past is no duplicate but unanswered, a UD
// message of two packets is refused at the post.
//
// # Faults
//
// A call: Host.Fail makes the n-th call of an Op fail, Host.On runs anything before one. Links: Fabric.Cut, Device.SetLink,
// Device.Pause. Ends of a life: Host.Kill, Host.PowerCut, Host.RemoveDevice. Order: Device.DelayCompletions, Device.DelayEvents, Host.DropEvents,
// Host.SpuriousWakes, Host.InjectEvent, Device.InjectAsync. Limits: DeviceConfig.
package verbstest
