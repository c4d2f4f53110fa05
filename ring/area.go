package ring

// area is the memory of a ring from a stream position on: position p lies at (p-base) modulo its size.
type area struct {
	buf  []byte
	addr uint64
	rkey uint32
	base uint64
}

// at is the offset of a stream position.
func (a *area) at(pos uint64) int { return int((pos - a.base) % uint64(len(a.buf))) }

// ring is the memory of a stream direction, which may be replaced once by a larger one while bytes are on their way: then those before
// its base lie in the old one.
type ring struct {
	area
	old   area
	grown bool
}

// of is the area of a stream position, and how many bytes from there on lie in it at most.
func (r *ring) of(pos uint64) (*area, int) {
	if r.grown && pos < r.base {
		return &r.old, min(int(r.base-pos), len(r.old.buf)-r.old.at(pos))
	}
	return &r.area, len(r.buf) - r.at(pos)
}

// grow has the bytes from a stream position on lie in other memory.
func (r *ring) grow(buf []byte, addr uint64, rkey uint32, pos uint64) {
	r.old, r.area, r.grown = r.area, area{buf, addr, rkey, pos}, true
}
