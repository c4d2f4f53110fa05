package verbstest

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// Env is what the conformance suite runs on.
type Env struct {
	// Dial and Listen are the providers of the two ends. They may be one and the same.
	Dial, Listen cm.Provider

	// Addr is an address of a device of Listen, which Dial reaches.
	Addr netip.Addr

	// Local is the address the dialing end binds. The zero Addr leaves it to the route.
	Local netip.Addr

	// Nobody is an address in Addr's network that no host has. The zero Addr leaves out what needs one.
	Nobody netip.Addr

	// Loopback says that the providers serve loopback addresses; else they must refuse them.
	Loopback bool

	// ReadUnchecked says that a device lets the peer READ memory that was registered without AccessRemoteRead, as the
	// kernel's soft-iWARP does.
	ReadUnchecked bool

	// ReadUnordered says that requests posted behind a READ may complete before it, as on the kernel's soft-iWARP.
	ReadUnordered bool

	// ReadOneWay says that READs beyond the depth may get stuck when both ends post them, as on the kernel's soft-iWARP with a
	// depth of 1.
	ReadOneWay bool

	// SRQLimitLate says that a limit of an SRQ that is not reached any more when it is set is told of with the next receive only,
	// as on Linux's Soft-RoCE and soft-iWARP.
	SRQLimitLate bool

	// SRQLimitStays says that an SRQ's Query still tells the limit after its event, as on the kernel's soft-iWARP.
	SRQLimitStays bool

	// SQDWaits says that what was posted in the state SQD starts only with the next post after the QP is back in RTS, as on
	// Linux's Soft-RoCE.
	SQDWaits bool

	// SolicitedAll says that every completion wakes a Wait that is for solicited ones, as with the kernel's soft-iWARP, which has no
	// events for solicited receives alone.
	SolicitedAll bool

	// SolicitedSendSilent says that a send that fails does not wake such a Wait, as on Linux's Soft-RoCE.
	SolicitedSendSilent bool

	// OverrunSilent says that no event tells of the overrun of a CQ.
	OverrunSilent bool

	// Leaks, if set, tells what is open in the providers beyond what was when Run began. It is asked after each case, again for a
	// while until it returns nil.
	Leaks func() error

	// Patience is how long anything may take. Default 10 seconds.
	Patience time.Duration

	// byHand has cases that need no more than connected RC QPs connect them by hand.
	byHand bool
}

// Run checks that providers keep the contract of packages verbs and cm. Each case is a subtest. Those about something that the
// device of one of the ends does not have (see verbs.DeviceAttr) are left out, which the log tells, but there are some that ask for
// it all the same.
func Run(t *testing.T, env Env) {
	if env.Patience == 0 {
		env.Patience = 10 * time.Second
	}
	s := &suite{env}
	attr := s.common(t)
	var out []string
	for _, c := range s.cases() {
		if c.needs != nil && !c.needs(attr) {
			out = append(out, c.name)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			defer s.watchdog(t)()
			t.Cleanup(func() { s.leaks(t) })
			c.run(t)
		})
	}
	if len(out) > 0 {
		t.Logf("left out, for want of something in the devices: %s", strings.Join(out, ", "))
	}
}

type testCase struct {
	name  string
	run   func(*testing.T)
	needs need
}

// need says whether devices have what a case needs. Nil: nothing special.
type need func(verbs.DeviceAttr) bool

// operations needs operations.
func operations(list ...verbs.Opcode) need {
	set := verbs.Opcodes(list...)
	return func(a verbs.DeviceAttr) bool { return a.Caps.Send&set == set }
}

// byHand needs QPs of a type that are connected by hand.
func byHand(t verbs.QPType) need {
	return func(a verbs.DeviceAttr) bool { return a.Caps.QPTypes.Has(t) }
}

func srqs(a verbs.DeviceAttr) bool { return a.MaxSRQ > 0 }

func ahs(a verbs.DeviceAttr) bool { return a.MaxAH > 0 }

func (n need) and(more ...need) need {
	return func(a verbs.DeviceAttr) bool {
		for _, f := range append(more, n) {
			if f != nil && !f(a) {
				return false
			}
		}
		return true
	}
}

func (s *suite) cases() []testCase {
	return slices.Concat(
		s.objectCases(), s.connectCases(), s.dataCases(), s.memoryCases(), s.sglCases(), s.errorCases(), s.atomicCases(),
		s.immediateCases(), s.waitCases(), s.solicitedCases(), s.srqCases(), s.byHandCases(), s.stateCases(), s.ucCases(),
		s.udCases(), s.misuseCases(), s.endCases(),
	)
}

func (s *suite) objectCases() []testCase {
	return []testCase{
		{"Attributes", s.attributes, nil},
		{"Ports", s.ports, nil},
		{"Watch", s.watch, nil},
		{"MissingObjects", s.missingObjects, nil},

		// fault: MEM-6
		{"Memory", s.memory, nil},
		{"Sizes", s.sizes, nil},
		{"Limits", s.limits, nil},
		// fault: CLOSE-3
		{"CloseOrder", s.closeOrder, nil},
		// fault: CLOSE-3
		{"AfterClose", s.afterClose, nil},
		// fault: CONN-5
		{"Foreign", s.foreign, nil},
	}
}

func (s *suite) connectCases() []testCase {
	return []testCase{
		// fault: CONN-6
		{"PrivateData", s.privateData, nil},
		// fault: CONN-6
		{"PrivateDataTooLong", s.privateDataTooLong, nil},
		// fault: CONN-4
		{"Addresses", s.addresses, nil},
		{"QPAttributes", s.qpAttributes, nil},
		// fault: CONN-4
		{"ListenPort", s.listenPort, nil},
		{"Reject", s.reject, nil},
		// fault: CONN-2
		{"Refused", s.refused, nil},
		// fault: CONN-2
		{"Nobody", s.nobody, nil},
		// fault: CONN-8
		{"LoopbackRefused", s.loopbackRefused, nil},
		{"WrongOrder", s.wrongOrder, nil},
		// fault: CONN-1
		{"CancelResolve", s.cancelResolve, nil},
		// fault: CONN-1
		{"CancelConnect", s.cancelConnect, nil},
		// fault: CONN-1
		{"CancelAccept", s.cancelAccept, nil},
		// fault: CONN-7
		{"Backlog", s.backlog, nil},
		// fault: CLOSE-8
		{"CloseListener", s.closeListener, nil},
		// fault: CLOSE-9
		{"CloseUnconnected", s.closeUnconnected, nil},
	}
}

func (s *suite) dataCases() []testCase {
	return []testCase{
		{"Send", s.send, nil},
		{"Write", s.write, nil},
		{"WriteWithImm", s.writeWithImm, nil},
		{"Read", s.read, nil},
		{"ReadDepth", s.readDepth, nil},
		{"ReadNoDepth", s.readNoDepth, nil},
		{"DepthLimit", s.depthLimit, nil},
		{"ReadNothing", s.readNothing, nil},
		{"ReadOrder", s.readOrder, nil},
		{"ReadFence", s.readFence, nil},
		{"ReadLocalAccess", s.readLocalAccess, nil},
		{"Inline", s.inline, nil},
		{"ZeroLength", s.zeroLength, nil},
		{"Large", s.large, nil},
		// fault: DATA-3
		{"Batch", s.batch, nil},
		// fault: FLOW-1
		{"QueueFull", s.queueFull, nil},
		{"Unsignaled", s.unsignaled, nil},
		{"UnsignaledMix", s.unsignaledMix, nil},
		{"SignalAll", s.signalAll, nil},
		{"MissingOpcodes", s.missingOpcodes, nil},
		// fault: FLOW-3
		{"ReceiveFirst", s.receiveFirst, nil},
		{"NoReceive", s.noReceive, nil},
	}
}

func (s *suite) errorCases() []testCase {
	return []testCase{
		{"RemoteMemory", s.remoteMemory, nil},
		{"LocalMemory", s.localMemory, nil},
		{"ReceiveMemory", s.receiveMemory, nil},
		{"ShortReceive", s.shortReceive, nil},
		{"Flush", s.flush, nil},
	}
}

func (s *suite) atomicCases() []testCase {
	atomics := operations(verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
	return []testCase{
		{"Atomic", s.atomic, atomics},
		{"AtomicContenders", s.atomicContenders, atomics},
		{"AtomicDepth", s.atomicDepth, atomics},
		{"AtomicFence", s.atomicFence, atomics},
		{"AtomicNoDepth", s.atomicNoDepth, atomics},
		{"AtomicMisaligned", s.atomicMisaligned, atomics},
		{"AtomicResult", s.atomicResult, atomics},
	}
}

func (s *suite) immediateCases() []testCase {
	var (
		imm  = operations(verbs.OpSendWithImm)
		wImm = operations(verbs.OpRDMAWriteWithImm)
		inv  = operations(verbs.OpSendWithInv)
	)
	return []testCase{
		{"SendWithImm", s.sendWithImm, imm},
		{"SendWithImmNoReceive", s.sendWithImmNoReceive, imm},
		{"WriteWithImmOrder", s.writeWithImmOrder, wImm},
		{"WriteWithImmNoReceive", s.writeWithImmNoReceive, wImm},
		{"SendWithInv", s.sendWithInv, inv},
		{"SendWithInvUnknown", s.sendWithInvUnknown, inv},
	}
}

func (s *suite) waitCases() []testCase {
	return []testCase{
		// fault: DATA-5
		{"WaitDataThere", s.waitDataThere, nil},
		{"WaitWakes", s.waitWakes, nil},
		{"Interrupt", s.interrupt, nil},
		{"CloseDuringWait", s.closeDuringWait, nil},
		// fault: DATA-4
		{"PingPong", s.pingPong, nil},
		{"ConcurrentPosts", s.concurrentPosts, nil},
	}
}

func (s *suite) endCases() []testCase {
	return []testCase{
		{"Disconnect", s.disconnect, nil},
		// fault: CLOSE-6
		{"CloseIsDisconnect", s.closeIsDisconnect, nil},
		// fault: CLOSE-6
		{"BothDisconnect", s.bothDisconnect, nil},
		// fault: CLOSE-2
		{"Cycles", s.cycles, nil},
	}
}

type suite struct{ Env }

// watchdog ends the program with all its stacks when a case hangs where no context reaches.
func (s *suite) watchdog(t *testing.T) (stop func()) {
	timer := time.AfterFunc(12*s.Patience, func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		panic(fmt.Sprintf("%s hangs\n%s", t.Name(), stacks))
	})
	return func() { timer.Stop() }
}

// ctx is a context for calls that must end.
func (s *suite) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for something that takes its time.
func (s *suite) eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(s.Patience); !f(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "waited in vain: %s", what)
	}
}

func (s *suite) leaks(t *testing.T) {
	if s.Env.Leaks == nil {
		return
	}
	var err error
	for end := time.Now().Add(s.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = s.Env.Leaks(); err == nil {
			return
		}
	}
	require.NoError(t, err)
}

func (s *suite) listen(t *testing.T, o cm.ListenOptions) cm.Listener {
	t.Helper()
	ln, err := s.Listen.Listen(netip.AddrPortFrom(s.Addr, 0), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

func (s *suite) resolve(t *testing.T, to netip.AddrPort) cm.Resolved {
	t.Helper()
	id, err := s.Dial.Resolve(s.ctx(t), s.localPort0(), to)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, id.Close()) })
	return id
}

func (s *suite) localPort0() netip.AddrPort {
	if !s.Local.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(s.Local, 0)
}

// common is what the devices of both ends have.
func (s *suite) common(t *testing.T) verbs.DeviceAttr {
	t.Helper()
	id, err := s.Dial.Resolve(s.ctx(t), s.localPort0(), netip.AddrPortFrom(s.Addr, 7471))
	require.NoError(t, err)
	a := id.Device().Attr()
	require.NoError(t, id.Close())
	ln, err := s.Listen.Listen(netip.AddrPortFrom(s.Addr, 0), cm.ListenOptions{})
	require.NoError(t, err)
	b := ln.Device().Attr()
	require.NoError(t, ln.Close())
	a.Caps.Send &= b.Caps.Send
	a.Caps.QPTypes &= b.Caps.QPTypes
	a.MaxSRQ, a.MaxAH = min(a.MaxSRQ, b.MaxSRQ), min(a.MaxAH, b.MaxAH)
	return a
}

// device is the dialing end's device.
func (s *suite) device(t *testing.T) verbs.Device {
	t.Helper()
	return s.resolve(t, netip.AddrPortFrom(s.Addr, 7471)).Device()
}

// peerDevice is the accepting end's device.
func (s *suite) peerDevice(t *testing.T) verbs.Device {
	t.Helper()
	ln, err := s.Listen.Listen(netip.AddrPortFrom(s.Addr, 0), cm.ListenOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	return ln.Device()
}

// param is what connections are made with. One READ at a time each way.
func param() cm.ConnParam {
	return cm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 6, RNRRetryCount: 7, AckTimeout: 16, MinRNRTimer: 5}
}
