// Connection management. An id's context holds the integer handle by which Go finds its own object, never a Go pointer.

#include <netinet/in.h>

static inline int rc_cm_open(struct rdma_event_channel **channel, int *fd)
{
	errno = 0;
	*channel = rc_api.rdma_create_event_channel();
	if (!*channel)
		return rc_errno(1);
	*fd = (*channel)->fd;
	int err = rc_nonblock(*fd);
	if (err)
		rc_api.rdma_destroy_event_channel(*channel);
	return err;
}

static inline void rc_cm_close(struct rdma_event_channel *channel) { rc_api.rdma_destroy_event_channel(channel); }

static inline int rc_cm_event(struct rdma_event_channel *channel, struct rc_cm_event *out)
{
	struct rdma_cm_event *ev;

	errno = 0;
	if (rc_api.rdma_get_cm_event(channel, &ev))
		return rc_errno(1);
	out->err = errno;
	out->type = ev->event;
	out->status = ev->status;
	out->new_id = NULL;
	if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		out->handle = (uintptr_t)ev->listen_id->context;
		out->new_id = ev->id;
	} else {
		out->handle = (uintptr_t)ev->id->context;
	}
	const struct rdma_conn_param *p = &ev->param.conn;
	out->conn.private_len = p->private_data ? p->private_data_len : 0;
	if (out->conn.private_len)
		memcpy(out->conn.private_data, p->private_data, out->conn.private_len);
	out->conn.responder_resources = p->responder_resources;
	out->conn.initiator_depth = p->initiator_depth;
	out->conn.retry_count = p->retry_count;
	out->conn.rnr_retry_count = p->rnr_retry_count;
	rc_api.rdma_ack_cm_event(ev);
	return 0;
}

static inline int rc_create_id(struct rdma_event_channel *channel, uint64_t handle, struct rdma_cm_id **id)
{
	errno = 0;
	return rc_errno(rc_api.rdma_create_id(channel, id, (void *)(uintptr_t)handle, RDMA_PS_TCP) != 0);
}

static inline void rc_set_handle(struct rdma_cm_id *id, uint64_t handle) { id->context = (void *)(uintptr_t)handle; }

static inline int rc_destroy_id(struct rdma_cm_id *id)
{
	errno = 0;
	return rc_errno(rc_api.rdma_destroy_id(id) != 0);
}

static inline struct ibv_context *rc_id_context(struct rdma_cm_id *id) { return id->verbs; }

static inline void rc_id_addrs(struct rdma_cm_id *id, uint8_t *src, uint8_t *dst)
{
	memcpy(src, &id->route.addr.src_storage, RC_ADDR);
	memcpy(dst, &id->route.addr.dst_storage, RC_ADDR);
}

static inline int rc_resolve_addr(struct rdma_cm_id *id, const uint8_t *src, const uint8_t *dst, int timeout_ms)
{
	struct sockaddr_storage s = {0}, d = {0};

	if (src)
		memcpy(&s, src, RC_ADDR);
	memcpy(&d, dst, RC_ADDR);
	errno = 0;
	return rc_errno(rc_api.rdma_resolve_addr(id, src ? (struct sockaddr *)&s : NULL, (struct sockaddr *)&d, timeout_ms) != 0);
}

static inline int rc_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	errno = 0;
	return rc_errno(rc_api.rdma_resolve_route(id, timeout_ms) != 0);
}

static inline int rc_listen(struct rdma_cm_id *id, const uint8_t *addr, int afonly, int backlog)
{
	struct sockaddr_storage s = {0};

	memcpy(&s, addr, RC_ADDR);
	errno = 0;
	if (afonly && rc_api.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &afonly, sizeof(afonly)))
		return rc_errno(1);
	if (rc_api.rdma_bind_addr(id, (struct sockaddr *)&s))
		return rc_errno(1);
	return rc_errno(rc_api.rdma_listen(id, backlog) != 0);
}

static inline int rc_set_ack_timeout(struct rdma_cm_id *id, int timeout)
{
	uint8_t t = timeout;

	errno = 0;
	return rc_errno(rc_api.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &t, sizeof(t)) != 0);
}

static inline struct rdma_conn_param rc_conn_param(const struct rc_conn *c)
{
	return (struct rdma_conn_param){
		.private_data = c->private_data,
		.private_data_len = c->private_len,
		.responder_resources = c->responder_resources,
		.initiator_depth = c->initiator_depth,
		.flow_control = 1,
		.retry_count = c->retry_count,
		.rnr_retry_count = c->rnr_retry_count,
	};
}

static inline int rc_connect(struct rdma_cm_id *id, const struct rc_conn *conn)
{
	struct rdma_conn_param p = rc_conn_param(conn);
	errno = 0;
	return rc_errno(rc_api.rdma_connect(id, &p) != 0);
}

static inline int rc_accept(struct rdma_cm_id *id, const struct rc_conn *conn)
{
	struct rdma_conn_param p = rc_conn_param(conn);
	errno = 0;
	return rc_errno(rc_api.rdma_accept(id, &p) != 0);
}

static inline int rc_reject(struct rdma_cm_id *id, const uint8_t *private_data, int len)
{
	errno = 0;
	return rc_errno(rc_api.rdma_reject(id, private_data, len) != 0);
}

static inline int rc_disconnect(struct rdma_cm_id *id)
{
	errno = 0;
	return rc_errno(rc_api.rdma_disconnect(id) != 0);
}
