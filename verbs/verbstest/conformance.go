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

	// Leaks, if set, tells what is open in the providers beyond what was when Run began. It is asked again for a
	// while until it returns nil.
	Leaks func() error

	// Patience is how long anything may take. Default 10 seconds.
	Patience time.Duration
}

// Run checks that providers keep the contract of packages verbs and cm. Each case is a subtest.
func Run(t *testing.T, env Env) {
	if env.Patience == 0 {
		env.Patience = 10 * time.Second
	}
	s := &suite{env}
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Attributes", s.attributes},
		{"Ports", s.ports},
		{"Watch", s.watch},

		// fault: MEM-6
		{"Memory", s.memory},
		{"Sizes", s.sizes},
		{"Limits", s.limits},
		// fault: CLOSE-3
		{"CloseOrder", s.closeOrder},
		// fault: CLOSE-3
		{"AfterClose", s.afterClose},
		// fault: CONN-5
		{"Foreign", s.foreign},

		// fault: CONN-6
		{"PrivateData", s.privateData},
		// fault: CONN-6
		{"PrivateDataTooLong", s.privateDataTooLong},
		// fault: CONN-4
		{"Addresses", s.addresses},
		{"QPAttributes", s.qpAttributes},
		// fault: CONN-4
		{"ListenPort", s.listenPort},
		{"Reject", s.reject},
		// fault: CONN-2
		{"Refused", s.refused},
		// fault: CONN-2
		{"Nobody", s.nobody},
		// fault: CONN-8
		{"LoopbackRefused", s.loopbackRefused},
		{"WrongOrder", s.wrongOrder},
		// fault: CONN-1
		{"CancelResolve", s.cancelResolve},
		// fault: CONN-1
		{"CancelConnect", s.cancelConnect},
		// fault: CONN-1
		{"CancelAccept", s.cancelAccept},
		// fault: CONN-7
		{"Backlog", s.backlog},
		// fault: CLOSE-8
		{"CloseListener", s.closeListener},
		// fault: CLOSE-9
		{"CloseUnconnected", s.closeUnconnected},

		{"Send", s.send},
		{"Write", s.write},
		{"WriteWithImm", s.writeWithImm},
		{"Read", s.read},
		{"Inline", s.inline},
		{"ZeroLength", s.zeroLength},
		{"Large", s.large},
		// fault: DATA-3
		{"Batch", s.batch},
		// fault: FLOW-1
		{"QueueFull", s.queueFull},
		{"Unsignaled", s.unsignaled},
		{"SignalAll", s.signalAll},
		{"MissingOpcodes", s.missingOpcodes},
		// fault: FLOW-3
		{"ReceiveFirst", s.receiveFirst},
		{"NoReceive", s.noReceive},

		{"RemoteAccess", s.remoteAccess},
		{"LocalAccess", s.localAccess},
		{"ShortReceive", s.shortReceive},
		{"Flush", s.flush},

		// fault: DATA-5
		{"WaitDataThere", s.waitDataThere},
		{"WaitWakes", s.waitWakes},
		{"Interrupt", s.interrupt},
		{"CloseDuringWait", s.closeDuringWait},
		// fault: DATA-4
		{"PingPong", s.pingPong},
		{"ConcurrentPosts", s.concurrentPosts},

		{"Disconnect", s.disconnect},
		// fault: CLOSE-6
		{"CloseIsDisconnect", s.closeIsDisconnect},
		// fault: CLOSE-6
		{"BothDisconnect", s.bothDisconnect},
		// fault: CLOSE-2
		{"Cycles", s.cycles},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer s.watchdog(t)()
			c.run(t)
		})
	}
	t.Run("Leaks", func(t *testing.T) { s.leaks(t) })
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

// device is the dialing end's device.
func (s *suite) device(t *testing.T) verbs.Device {
	t.Helper()
	return s.resolve(t, netip.AddrPortFrom(s.Addr, 7471)).Device()
}

// param is what connections are made with. One READ at a time each way.
func param() cm.ConnParam {
	return cm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 6, RNRRetryCount: 7, AckTimeout: 16, MinRNRTimer: 5}
}
