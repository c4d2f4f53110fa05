package verbs

// SRQOptions describe a shared receive queue.
type SRQOptions struct {
	MaxWR  int // entries, at least 1; at most DeviceAttr.MaxSRQWR. More may be granted
	MaxSGE int // scatter/gather entries of a receive; 0: 1. At most DeviceAttr.MaxSRQSGE
}

// SRQAttr are the attributes of a shared receive queue.
type SRQAttr struct {
	MaxWR  int // entries that were granted
	MaxSGE int // scatter/gather entries of a receive that were granted
	Limit  int // see SetLimit; 0: not armed. Soft-iWARP of Linux leaves it after the event
}

// SRQ is a shared receive queue: receive work requests for any number of QPs of one PD. A QP that was made with one (QPOptions.SRQ) has
// no receive queue of its own. Each message takes the oldest entry, whoever's it is; the completion appears in the receive CQ
// of the QP that the message came by, with its number in Completion.QPNum.
//
// A message that finds no entry fares as with an empty receive queue, see Capabilities.RNR. One that has begun keeps its entry until
// it is complete or its connection ends. A CQ that receives complete on needs room for all entries of the SRQ.
//
// Entries belong to the SRQ, not to a QP: when a QP goes to the error state only what it had begun to fill is completed, and the
// event EventQPLastWQEReached may tell that it takes no more. When the SRQ is closed what is left in it is gone without completions.
type SRQ interface {
	// PostRecv hands work requests to the queue, as QP.PostRecv does.
	PostRecv(wrs []RecvWR) (int, error)

	// Query reads the attributes.
	Query() (SRQAttr, error)

	// SetLimit arms the limit: EventSRQLimitReached comes once, when fewer than n entries are left. If there are fewer
	// already it comes at once, but on Linux's Soft-RoCE and soft-iWARP with the next message that takes one: post what is missing before
	// arming. The queue has to be armed again for the next event. 0 disarms. LimitError if n exceeds what was granted.
	SetLimit(n int) error

	// Close destroys the queue. ErrBusy while a QP uses it.
	Close() error
}
