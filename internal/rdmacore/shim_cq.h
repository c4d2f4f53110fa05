// Completion queues and channels.

#include <arpa/inet.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

static inline int rc_create_cq(struct ibv_context *ctx, int depth, struct rc_channel *channel, int solicited, uint64_t handle,
			       struct rc_cq **cq, int *granted)
{
	struct rc_cq *q = calloc(1, sizeof(*q));
	if (!q)
		return ENOMEM;
	errno = 0;
	q->channel = channel;
	q->handle = handle;
	q->solicited = solicited;
	q->cq = rc_api.ibv_create_cq(ctx, depth, q, channel ? channel->channel : NULL, 0);
	if (!q->cq) {
		int err = rc_errno(1);
		free(q);
		return err;
	}
	*cq = q;
	*granted = q->cq->cqe;
	return 0;
}

static inline int rc_destroy_cq(struct rc_cq *cq)
{
	int err = rc_code(rc_api.ibv_destroy_cq(cq->cq));
	if (!err)
		free(cq);
	return err;
}

// Where a completion came from is for UD. Devices fill it in, or forget to, for others too.
static inline void rc_copy_wc(struct rc_wc *out, const struct ibv_wc *wc, int ud)
{
	out->id = wc->wr_id;
	out->status = wc->status;
	out->opcode = wc->opcode & IBV_WC_RECV ? 7 + (wc->opcode & ~IBV_WC_RECV) : wc->opcode;
	out->flags = (wc->wc_flags & IBV_WC_WITH_IMM ? 1 : 0) | (wc->wc_flags & IBV_WC_WITH_INV ? 2 : 0) |
		     (ud && wc->wc_flags & IBV_WC_GRH ? 4 : 0);
	out->pad = 0;
	out->byte_len = wc->byte_len;
	out->imm = wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : 0;
	out->inv_rkey = wc->wc_flags & IBV_WC_WITH_INV ? wc->invalidated_rkey : 0;
	out->qp_num = wc->qp_num;
	out->vendor_err = wc->vendor_err;
	out->src_qp = ud ? wc->src_qp : 0;
	out->slid = ud ? wc->slid : 0;
	out->sl = ud ? wc->sl : 0;
	out->path_bits = ud ? wc->dlid_path_bits : 0;
}

// rc_poll_device takes up to n (at most RC_STASH) completions from the device.
static inline int rc_poll_device(struct rc_cq *cq, struct rc_wc *out, int n)
{
	struct ibv_wc wc[RC_STASH];
	int got = ibv_poll_cq(cq->cq, n, wc);
	if (got < 0)
		return -EIO;
	for (int i = 0; i < got; i++)
		rc_copy_wc(&out[i], &wc[i], cq->ud);
	return got;
}

static inline int rc_poll(struct rc_cq *cq, struct rc_wc *wc, int n)
{
	int done = 0;

	while (done < n) {
		int want = n - done < RC_STASH ? n - done : RC_STASH;
		int got = rc_poll_device(cq, wc + done, want);
		if (got < 0)
			return done ? done : got;
		done += got;
		if (got < want)
			break;
	}
	return done;
}

static inline int rc_create_channel(struct ibv_context *ctx, struct rc_channel **channel)
{
	struct rc_channel *c = calloc(1, sizeof(*c));
	if (!c)
		return ENOMEM;
	errno = 0;
	c->channel = rc_api.ibv_create_comp_channel(ctx);
	int err = rc_errno(!c->channel);
	if (!err && (err = rc_nonblock(c->channel->fd)))
		rc_api.ibv_destroy_comp_channel(c->channel);
	if (err) {
		free(c);
		return err;
	}
	*channel = c;
	return 0;
}

static inline int rc_channel_fd(struct rc_channel *c) { return c->channel->fd; }

static inline int rc_destroy_channel(struct rc_channel *c)
{
	int fd = c->channel->fd;

	c->channel->fd = -1;
	int err = rc_code(rc_api.ibv_destroy_comp_channel(c->channel));
	if (err) {
		c->channel->fd = fd;
		return err;
	}
	free(c->cqs);
	free(c);
	return 0;
}

static inline int rc_attach_cq(struct rc_channel *c, struct rc_cq *cq)
{
	if (c->n == c->cap) {
		struct rc_cq **more = realloc(c->cqs, (c->cap + 4) * sizeof(*more));
		if (!more)
			return ENOMEM;
		c->cqs = more;
		c->cap += 4;
	}
	c->cqs[c->n++] = cq;
	return 0;
}

static inline void rc_detach_cq(struct rc_channel *c, struct rc_cq *cq)
{
	for (int i = 0; i < c->n; i++)
		if (c->cqs[i] == cq) {
			memmove(&c->cqs[i], &c->cqs[i + 1], (--c->n - i) * sizeof(*c->cqs));
			return;
		}
}

// rc_look polls every CQ into its stash.
static inline int rc_look(struct rc_channel *c)
{
	int found = 0;

	for (int i = 0; i < c->n; i++) {
		struct rc_cq *cq = c->cqs[i];
		if (cq->n == 0) {
			int got = rc_poll_device(cq, cq->stash, RC_STASH);
			if (got < 0)
				return got;
			cq->head = 0;
			cq->n = got;
		}
		found |= cq->n > 0;
	}
	return found;
}

static inline int64_t rc_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline int rc_spin(struct rc_channel *c, int64_t ns)
{
	int found = rc_look(c);
	if (found)
		return found < 0 ? found : RC_AT_ONCE;

	int64_t end = rc_now() + ns;
	do {
		for (int i = 0; i < 128; i++) { // the clock costs more than a look, and much more where it is a system call
			found = rc_look(c);
			if (found)
				return found;
			if (__atomic_load_n(&c->interrupt, __ATOMIC_RELAXED))
				return 1;
		}
	} while (rc_now() < end);
	return 0;
}

// Every event is acknowledged where it is taken, so that destroying a CQ has nothing to wait for but this: until then it stays, and
// so no lock is needed. An armed CQ gives one event; whether there are more than that the kernel need not be asked.
static inline int rc_drain(struct rc_channel *c)
{
	struct ibv_cq *cq;
	void *context;

	c->taken = c->late = 0;
	do {
		if (rc_api.ibv_get_cq_event(c->channel, &cq, &context)) {
			if (!c->taken && errno != EAGAIN)
				c->taken = -rc_errno(1);
			break;
		}
		((struct rc_cq *)context)->armed = 0; // Wait's alone
		rc_api.ibv_ack_cq_events(cq, 1);
	} while (++c->taken < c->n);
	return c->taken;
}

static inline int rc_arm(struct rc_channel *c)
{
	int found = rc_look(c); // an event for what is here already would only be in the way
	if (found)
		return found;
	if (c->late && rc_drain(c) < 0)
		return c->taken;
	for (int i = 0; i < c->n; i++) {
		struct rc_cq *cq = c->cqs[i];
		if (cq->armed)
			continue;
		int err = ibv_req_notify_cq(cq->cq, cq->solicited);
		if (err)
			return -rc_code(err);
		cq->armed = 1;
	}
	return rc_look(c);
}

// What woke us is answered first: the event is taken when the CQ is armed again, before the next sleep.
static inline int rc_nap(struct rc_channel *c, int wake, int ms)
{
	struct pollfd p[] = {{.fd = c->channel->fd, .events = POLLIN}, {.fd = wake, .events = POLLIN}};
	uint64_t count;
	int n = poll(p, 2, ms);

	if (n > 0 && p[0].revents == POLLIN)
		c->taken = c->late = 1;
	else if (n > 0 && p[0].revents)
		rc_drain(c); // says what is wrong
	if (n > 0 && p[1].revents && read(wake, &count, sizeof(count)) < 0)
		n = 1; // it is empty, which is what was wanted
	return n > 0;
}
