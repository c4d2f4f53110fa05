// Posting.

// rc_post_result reads what a post returned. Two traps: -1 with errno, and siw's library, which forgets ENOMEM when part of a chain
// was taken but still points at the first request that was not.
static inline struct rc_posted rc_post_result(int err, int n, int bad)
{
	if (!err && bad < 0)
		return (struct rc_posted){n, 0};
	if (!err)
		err = ENOMEM;
	else if (err == -1 && errno)
		err = errno;
	return (struct rc_posted){bad < 0 ? 0 : bad, rc_code(err)};
}

// rc_target fills in where a request goes.
static inline void rc_target(struct ibv_send_wr *w, const struct rc_send_wr *in, int ud)
{
	w->imm_data = htonl(in->imm);
	if (ud) {
		w->wr.ud.ah = in->ah;
		w->wr.ud.remote_qpn = in->remote_qpn;
		w->wr.ud.remote_qkey = in->remote_qkey;
		return;
	}
	switch (w->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		w->wr.atomic.remote_addr = in->remote_addr;
		w->wr.atomic.rkey = in->rkey;
		w->wr.atomic.compare_add = in->compare_add;
		w->wr.atomic.swap = in->swap;
		return;
	case IBV_WR_SEND_WITH_INV:
		w->invalidate_rkey = in->rkey;
		break; // siw's library takes the key from the other place
	default:
		break;
	}
	w->wr.rdma.remote_addr = in->remote_addr;
	w->wr.rdma.rkey = in->rkey;
}

static inline struct rc_posted rc_post_send(struct rc_qp *qp, int n)
{
	static const uint8_t opcodes[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	struct ibv_sge inline_sge[RC_BATCH];
	struct ibv_send_wr wr[RC_BATCH], *bad = NULL;

	for (int i = 0; i < n; i++) {
		const struct rc_send_wr *in = &qp->send[i];
		struct ibv_send_wr *w = &wr[i];

		w->wr_id = in->id;
		w->next = i + 1 < n ? w + 1 : NULL;
		w->opcode = opcodes[in->opcode];
		w->send_flags = (in->flags & 1 ? IBV_SEND_SIGNALED : 0) | (in->flags & 2 ? IBV_SEND_SOLICITED : 0) |
				(in->flags & 4 ? IBV_SEND_FENCE : 0);
		w->sg_list = (struct ibv_sge *)&qp->send_sge[i * qp->cap.send_sge];
		w->num_sge = in->num_sge;
		if (in->inline_len) {
			inline_sge[i].addr = (uintptr_t)&qp->inline_data[i * qp->cap.max_inline];
			inline_sge[i].length = in->inline_len;
			inline_sge[i].lkey = 0;
			w->send_flags |= IBV_SEND_INLINE;
			w->sg_list = &inline_sge[i];
			w->num_sge = 1;
		}
		rc_target(w, in, qp->ud);
	}
	errno = 0;
	int err = ibv_post_send(qp->qp, wr, &bad);
	return rc_post_result(err, n, bad ? bad - wr : -1);
}

static inline struct rc_posted rc_post_recv(struct rc_rq *rq, int n)
{
	struct ibv_recv_wr wr[RC_BATCH], *bad = NULL;

	for (int i = 0; i < n; i++) {
		wr[i].wr_id = rq->wr[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = (struct ibv_sge *)&rq->sge[i * rq->max_sge];
		wr[i].num_sge = rq->wr[i].num_sge;
	}
	errno = 0;
	int err = rq->srq ? ibv_post_srq_recv(rq->srq, wr, &bad) : ibv_post_recv(rq->qp, wr, &bad);
	return rc_post_result(err, n, bad ? bad - wr : -1);
}
