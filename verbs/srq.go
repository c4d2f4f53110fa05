package verbs

// SRQOptions describe a shared receive queue.
type SRQOptions struct {
	MaxWR  int // entries, at least 1; at most DeviceAttr.MaxSRQWR
	MaxSGE int // scatter/gather entries of a receive; 0: 1. At most DeviceAttr.MaxSRQSGE
}

// SRQAttr are the attributes of a shared receive queue.
type SRQAttr struct {
	MaxWR  int // entries that were granted
	MaxSGE int // scatter/gather entries of a receive that were granted
	Limit  int // see SetLimit; 0: not armed
}

// SRQ is a shared receive queue: receive work requests for any number of QPs of one PD. A QP that was made with one (QPOptions.SRQ) has
// no receive queue of its own. Each message takes the oldest entry, whoever's it is; the completion appears in the receive CQ
// of the QP that the message came by, with its number in Completion.QPNum.
//
// Entries belong to the SRQ, not to a QP: when a QP goes to the error state only what it had begun to fill is completed, and the
// event EventQPLastWQEReached may tell that it takes no more. When the SRQ is closed what is left in it is gone without completions.
type SRQ interface {
	// PostRecv hands work requests to the queue, as QP.PostRecv does.
	PostRecv(wrs []RecvWR) (int, error)

	// Query reads the attributes.
	Query() (SRQAttr, error)

	// SetLimit arms the limit: EventSRQLimitReached comes once, when fewer than n entries are left, and at once if there are
	// fewer. The queue has to be armed again for the next event. 0 disarms. LimitError if n exceeds what was granted.
	SetLimit(n int) error

	// Close destroys the queue. ErrBusy while a QP uses it.
	Close() error
}
