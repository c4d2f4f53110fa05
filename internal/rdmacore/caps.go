package rdmacore

import "github.com/rconn/rdma/verbs"

// siwVendor is the vendor of Linux's soft-iWARP.
const siwVendor = 0x626d74

// capabilities are what a device is taken to have. There is no call that asks for opcodes.
//
// SEND with invalidate is left out. On InfiniBand it is for memory windows and the kernel's own regions: Soft-RoCE answers it with
// REM_INV_REQ_ERR. Soft-iWARP makes the key invalid, but the library does not tell the receiver which key it was, and a key that
// cannot be made invalid fails the receive and leaves the connection up (all tried on Linux 6.1).
func capabilities(attr *verbs.DeviceAttr) verbs.Capabilities {
	send := verbs.Opcodes(verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead)
	if attr.Atomic != verbs.AtomicNone {
		send |= atomics
	}
	if attr.Transport == verbs.TransportIWARP {
		return verbs.Capabilities{Send: send, LocksMemory: true, FreesEarlier: attr.VendorID != siwVendor}
	}
	c := verbs.Capabilities{
		Send: send | verbs.Opcodes(verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm),
		RNR:  true, WriteAcked: true, LocksMemory: true, FreesEarlier: true,
	}
	if attr.Transport == verbs.TransportIB {
		c.QPTypes = verbs.QPTypes(verbs.RC, verbs.UC, verbs.UD)
	}
	return c
}
