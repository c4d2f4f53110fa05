package verbs

// Access says what may be done to a memory region besides local reads, which are always allowed.
type Access uint32

// The access flags, with the values of ibv_access_flags. Remote write and remote atomic need local write too (IBTA
// vol. 1, 10.6.3.1; ibv_reg_mr(3)).
const (
	AccessLocalWrite Access = 1 << iota
	AccessRemoteWrite
	AccessRemoteRead
	AccessRemoteAtomic
)

// PD is a protection domain: a QP reaches the MRs of its own PD only.
type PD interface {
	Device() Device

	// AllocMR maps size bytes of zeroed, page-aligned memory outside Go's heap and registers them. The memory is
	// not inherited by a child process, so that fork and exec cannot disturb a transfer. It counts
	// against RLIMIT_MEMLOCK; a refusal for that reason is a *MemlockError.
	AllocMR(size int, access Access) (MR, error)

	// Close frees the domain. ErrBusy while an MR or QP of it is open.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	// Bytes is the memory. It must not be touched after Close.
	Bytes() []byte

	// Addr is the address of the first byte in work requests, here and at the peer.
	Addr() uint64

	// LKey names the region in work requests of this side.
	LKey() uint32

	// RKey names the region in work requests of the peer.
	RKey() uint32

	// Close deregisters and unmaps the region. Work requests that still name it fail. Close the QPs that may use it
	// first: until then the device may write to it.
	Close() error
}

// SGE is a scatter/gather entry: a piece of a registered memory region.
type SGE struct {
	Addr   uint64 // in the range of the MR: mr.Addr()+offset
	Length uint32 // bytes
	LKey   uint32
}
