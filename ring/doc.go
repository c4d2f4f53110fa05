// Package ring is the rsocket v1 stream protocol as pure logic: it has no I/O, no clock and no goroutines, and knows nothing of
// verbs. It turns what arrives (messages, completions) and what the user wants (bytes, shutdown) into operations
// to post, so that two of it can run against each other in a test without any device.
//
// # The protocol in short
//
// Each side owns a receive ring, cut into segments, and a small table of segments of the other side's ring. A sender writes
// stream bytes by RDMA WRITE into the segment that its table names, and tells their number in a 32-bit message
// that travels as the immediate data of the write. The receiver gives space back by writing a new entry into the
// sender's table. Two limits hold a sender: bytes (a segment with room) and messages (a 16-bit sequence limit), since each
// message uses up one posted receive. Messages about space, shutdown and disconnect are not held by the limit; receivers
// post some receives more than they grant.
//
// iWARP has no write with immediate: there each message is a SEND of 4 bytes that follows the write (Variant).
//
// # Use
//
// A Stream is not safe for concurrent use. The memory it works on is the caller's: the send ring, which
// only the device reads; the receive ring and the table, which the peer writes. Everything that a peer sends is checked
// before it is believed; a violation is a *ProtocolError and ends the connection.
//
//	s, err := ring.New(config)
//	// post config.Receives() receives, exchange s.Handshake() with the peer's
//	err = s.Start(peer)
//	loop:
//	    for each completed receive: err = s.Received(message, byteLen)
//	    for each completed send:    s.Completed(seq)
//	    copy to s.WriteSpan() and s.Commit, copy from s.ReadSpan() and s.Consume
//	    post s.Owed() receives, s.Reposted(n)
//	    for s.Next(&op): post op
package ring
