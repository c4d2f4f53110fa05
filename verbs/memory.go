package verbs

// Access says what may be done to a memory region besides local reads, which are always allowed, and how it is registered.
type Access uint32

// The access flags, with the values of ibv_access_flags. Remote write and remote atomic need local write too (IBTA
// vol. 1, 10.6.3.1; ibv_reg_mr(3)). Every device has the first four; a flag that a device does not have gives an UnsupportedError.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3

	// AccessZeroBased has addresses of the region begin at 0, on both sides: MR.Addr returns 0.
	AccessZeroBased Access = 1 << 5

	// AccessOnDemand leaves the memory unlocked; the device has the kernel bring its pages when it needs them.
	AccessOnDemand Access = 1 << 6

	// AccessHugeTLB says that the memory consists of huge pages. For RegMR; AllocMR maps ordinary ones.
	AccessHugeTLB Access = 1 << 7

	// AccessRelaxedOrdering lets the device write to the region out of order within a work request. It is a hint: devices that
	// cannot do it ignore it.
	AccessRelaxedOrdering Access = 1 << 20
)

// PD is a protection domain: a QP reaches the MRs of its own PD only.
type PD interface {
	Device() Device

	// AllocMR maps size bytes of zeroed, page-aligned memory outside Go's heap and registers them. The memory is
	// not inherited by a child process, so that fork and exec cannot disturb a transfer. Where Capabilities.LocksMemory says so, it
	// counts against RLIMIT_MEMLOCK; a refusal for that reason is a *MemlockError. A size of less than 1 is syscall.EINVAL, as
	// is access that lacks AccessLocalWrite beside what needs it; beyond DeviceAttr.MaxMRSize it is a LimitError.
	AllocMR(size int, access Access) (MR, error)

	// RegMR registers memory of the caller's: a Go allocation, or what mmap returned. Errors are those of AllocMR. As long as the region
	// is open the provider keeps the memory alive, and pinned in the sense of runtime.Pinner; memory from mmap must stay mapped.
	// While work requests or peers can reach it, the device reads and writes it without Go's knowledge; the race detector sees
	// that on the software device only. A child process that runs Go or C code before exec (os/exec does not) may break a transfer; on
	// kernels before 5.12 it may do so even by touching a neighbour on the same page, so that nothing else should lie on its
	// pages. AllocMR has none of these rules; RegMR is for memory that others hand in.
	RegMR(mem []byte, access Access) (MR, error)

	// CreateQP makes a QP in the state QPReset, to be connected by hand, see ByHand. Which types a device makes so is in
	// Capabilities.QPTypes; others are an UnsupportedError. The device's RDMA CM knows nothing of such QPs: where the driver cannot
	// revoke a device, as Linux's Soft-RoCE, a program without a cm.ID learns of its removal only when it lists the devices.
	CreateQP(o QPOptions) (QP, error)

	// CreateSRQ makes a shared receive queue. UnsupportedError where DeviceAttr.MaxSRQ is 0, LimitError beyond the limits.
	CreateSRQ(o SRQOptions) (SRQ, error)

	// CreateAH makes an address handle. UnsupportedError where DeviceAttr.MaxAH is 0.
	CreateAH(a AHAttr) (AH, error)

	// Close frees the domain. ErrBusy while an MR, QP, SRQ or AH of it is open.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	// Bytes is the memory. It must not be touched after Close.
	Bytes() []byte

	// Addr is the address of the first byte in work requests, here and at the peer. Except with AccessZeroBased, or
	// a provider that makes up addresses, it is that of the memory.
	Addr() uint64

	// LKey names the region in work requests of this side.
	LKey() uint32

	// RKey names the region in work requests of the peer.
	RKey() uint32

	// Close deregisters the region, and unmaps what AllocMR mapped. Work requests that still name it fail. Close the QPs that may
	// use it first: until then the device may write to it.
	Close() error
}

// SGE is a scatter/gather entry: a piece of a registered memory region.
type SGE struct {
	Addr   uint64 // in the range of the MR: mr.Addr()+offset
	Length uint32 // bytes
	LKey   uint32
}
