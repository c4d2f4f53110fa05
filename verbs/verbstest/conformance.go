package verbstest

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
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

	// Leaks, if set, tells what is open in the providers beyond what was when Run began. It is asked again for a
	// while until it returns nil.
	Leaks func() error

	// Patience is how long anything may take. Default 10 seconds.
	Patience time.Duration
}

// Run checks that providers keep the contract of packages verbs and cm. Each case is a subtest. Those about an operation that the
// dialing end's device does not have (see verbs.Capabilities) are left out, but one that asks for it all the same.
func Run(t *testing.T, env Env) {
	if env.Patience == 0 {
		env.Patience = 10 * time.Second
	}
	s := &suite{env}
	ops := s.opcodes(t)
	for _, c := range s.cases() {
		if ops&c.needs != c.needs {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			defer s.watchdog(t)()
			c.run(t)
		})
	}
	t.Run("Leaks", func(t *testing.T) { s.leaks(t) })
}

type testCase struct {
	name  string
	run   func(*testing.T)
	needs verbs.OpcodeSet
}

func (s *suite) cases() []testCase {
	var (
		atomics = verbs.Opcodes(verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
		imm     = verbs.Opcodes(verbs.OpSendWithImm)
		wImm    = verbs.Opcodes(verbs.OpRDMAWriteWithImm)
		inv     = verbs.Opcodes(verbs.OpSendWithInv)
	)
	return []testCase{
		{"Attributes", s.attributes, 0},
		{"Ports", s.ports, 0},
		{"Watch", s.watch, 0},

		// fault: MEM-6
		{"Memory", s.memory, 0},
		{"Sizes", s.sizes, 0},
		{"Limits", s.limits, 0},
		// fault: CLOSE-3
		{"CloseOrder", s.closeOrder, 0},
		// fault: CLOSE-3
		{"AfterClose", s.afterClose, 0},
		// fault: CONN-5
		{"Foreign", s.foreign, 0},

		// fault: CONN-6
		{"PrivateData", s.privateData, 0},
		// fault: CONN-6
		{"PrivateDataTooLong", s.privateDataTooLong, 0},
		// fault: CONN-4
		{"Addresses", s.addresses, 0},
		{"QPAttributes", s.qpAttributes, 0},
		// fault: CONN-4
		{"ListenPort", s.listenPort, 0},
		{"Reject", s.reject, 0},
		// fault: CONN-2
		{"Refused", s.refused, 0},
		// fault: CONN-2
		{"Nobody", s.nobody, 0},
		// fault: CONN-8
		{"LoopbackRefused", s.loopbackRefused, 0},
		{"WrongOrder", s.wrongOrder, 0},
		// fault: CONN-1
		{"CancelResolve", s.cancelResolve, 0},
		// fault: CONN-1
		{"CancelConnect", s.cancelConnect, 0},
		// fault: CONN-1
		{"CancelAccept", s.cancelAccept, 0},
		// fault: CONN-7
		{"Backlog", s.backlog, 0},
		// fault: CLOSE-8
		{"CloseListener", s.closeListener, 0},
		// fault: CLOSE-9
		{"CloseUnconnected", s.closeUnconnected, 0},

		{"Send", s.send, 0},
		{"Write", s.write, 0},
		{"WriteWithImm", s.writeWithImm, 0},
		{"Read", s.read, 0},
		{"ReadDepth", s.readDepth, 0},
		{"ReadNoDepth", s.readNoDepth, 0},
		{"DepthLimit", s.depthLimit, 0},
		{"ReadNothing", s.readNothing, 0},
		{"ReadOrder", s.readOrder, 0},
		{"ReadFence", s.readFence, 0},
		{"ReadLocalAccess", s.readLocalAccess, 0},
		{"Inline", s.inline, 0},
		{"ZeroLength", s.zeroLength, 0},
		{"Large", s.large, 0},
		// fault: DATA-3
		{"Batch", s.batch, 0},
		// fault: FLOW-1
		{"QueueFull", s.queueFull, 0},
		{"Unsignaled", s.unsignaled, 0},
		{"SignalAll", s.signalAll, 0},
		{"MissingOpcodes", s.missingOpcodes, 0},
		// fault: FLOW-3
		{"ReceiveFirst", s.receiveFirst, 0},
		{"NoReceive", s.noReceive, 0},

		{"RemoteAccess", s.remoteAccess, 0},
		{"LocalAccess", s.localAccess, 0},
		{"ShortReceive", s.shortReceive, 0},
		{"Flush", s.flush, 0},

		{"Atomic", s.atomic, atomics},
		{"AtomicContenders", s.atomicContenders, atomics},
		{"AtomicDepth", s.atomicDepth, atomics},
		{"AtomicFence", s.atomicFence, atomics},
		{"AtomicNoDepth", s.atomicNoDepth, atomics},
		{"AtomicMisaligned", s.atomicMisaligned, atomics},
		{"AtomicAccess", s.atomicAccess, atomics},
		{"AtomicResult", s.atomicResult, atomics},
		{"SendWithImm", s.sendWithImm, imm},
		{"SendWithImmNoReceive", s.sendWithImmNoReceive, imm},
		{"WriteWithImmOrder", s.writeWithImmOrder, wImm},
		{"WriteWithImmNoReceive", s.writeWithImmNoReceive, wImm},
		{"WriteWithImmAccess", s.writeWithImmAccess, wImm},
		{"SendWithInv", s.sendWithInv, inv},
		{"SendWithInvUnknown", s.sendWithInvUnknown, inv},

		// fault: DATA-5
		{"WaitDataThere", s.waitDataThere, 0},
		{"WaitWakes", s.waitWakes, 0},
		{"Interrupt", s.interrupt, 0},
		{"CloseDuringWait", s.closeDuringWait, 0},
		// fault: DATA-4
		{"PingPong", s.pingPong, 0},
		{"ConcurrentPosts", s.concurrentPosts, 0},

		{"Disconnect", s.disconnect, 0},
		// fault: CLOSE-6
		{"CloseIsDisconnect", s.closeIsDisconnect, 0},
		// fault: CLOSE-6
		{"BothDisconnect", s.bothDisconnect, 0},
		// fault: CLOSE-2
		{"Cycles", s.cycles, 0},
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

// opcodes are those of the dialing end's device.
func (s *suite) opcodes(t *testing.T) verbs.OpcodeSet {
	t.Helper()
	id, err := s.Dial.Resolve(s.ctx(t), s.localPort0(), netip.AddrPortFrom(s.Addr, 7471))
	require.NoError(t, err)
	ops := id.Device().Attr().Caps.Send
	require.NoError(t, id.Close())
	return ops
}

// device is the dialing end's device.
func (s *suite) device(t *testing.T) verbs.Device {
	t.Helper()
	return s.resolve(t, netip.AddrPortFrom(s.Addr, 7471)).Device()
}

// param is what connections are made with. One READ at a time each way.
func param() cm.ConnParam {
	return cm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 6, RNRRetryCount: 7, AckTimeout: 16, MinRNRTimer: 5}
}
