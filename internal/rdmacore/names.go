package rdmacore

const providerName = "system"

// The steps that a cm.Error names.
const (
	opResolveAddr  = "resolve address"
	opResolveRoute = "resolve route"
	opConnect      = "connect"
	opListen       = "listen"
	opAccept       = "accept"
	opReject       = "reject"
)
