// Devices, protection domains, memory and address handles.

#include <endian.h>
#include <fcntl.h>

static inline int rc_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return rc_errno(flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0);
}

static inline int rc_get_devices(struct ibv_context ***list, int *n)
{
	errno = 0;
	*list = rc_api.rdma_get_devices(n);
	return rc_errno(!*list);
}

// librdmacm counts a reference for each context on a list. Lists of one let us keep and return them one by one.
static inline void rc_put_device(struct ibv_context *ctx)
{
	struct ibv_context **list = calloc(2, sizeof(*list));
	if (!list)
		return; // the device stays open
	list[0] = ctx;
	rc_api.rdma_free_devices(list);
}

static inline const char *rc_device_name(struct ibv_context *ctx) { return rc_api.ibv_get_device_name(ctx->device); }

static inline int rc_query_device(struct ibv_context *ctx, struct rc_device_attr *out)
{
	struct ibv_device_attr a;
	int err = rc_code(rc_api.ibv_query_device(ctx, &a));
	if (err)
		return err;
	memset(out, 0, sizeof(*out));
	memcpy(out->firmware, a.fw_ver, sizeof(out->firmware) - 1);
	out->node_guid = be64toh(a.node_guid);
	out->sys_image_guid = be64toh(a.sys_image_guid);
	out->max_mr_size = a.max_mr_size;
	out->vendor_id = a.vendor_id;
	out->vendor_part_id = a.vendor_part_id;
	out->hw_ver = a.hw_ver;
	out->transport = ctx->device->transport_type == IBV_TRANSPORT_IB ? 1
		       : ctx->device->transport_type == IBV_TRANSPORT_IWARP ? 2 : 0;
	out->ports = a.phys_port_cnt;
	out->atomic_cap = a.atomic_cap;
	out->max_qp = a.max_qp;
	out->max_qp_wr = a.max_qp_wr;
	out->max_sge = a.max_sge;
	out->max_sge_rd = a.max_sge_rd;
	out->max_cq = a.max_cq;
	out->max_cqe = a.max_cqe;
	out->max_mr = a.max_mr;
	out->max_pd = a.max_pd;
	out->max_qp_rd_atom = a.max_qp_rd_atom;
	out->max_qp_init_rd_atom = a.max_qp_init_rd_atom;
	out->max_srq = a.max_srq;
	out->max_srq_wr = a.max_srq_wr;
	out->max_srq_sge = a.max_srq_sge;
	out->max_ah = a.max_ah;
	return 0;
}

static inline int rc_mtu_bytes(int mtu) { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0; }

static inline enum ibv_mtu rc_mtu(int bytes)
{
	int mtu = IBV_MTU_256;
	while (mtu < IBV_MTU_4096 && rc_mtu_bytes(mtu) < bytes)
		mtu++;
	return mtu;
}

static inline int rc_query_port(struct ibv_context *ctx, int port, struct rc_port_attr *out)
{
	struct verbs_context *vctx = verbs_get_ctx_op(ctx, query_port);
	struct ibv_port_attr a;
	int err;

	memset(&a, 0, sizeof(a));
	if (vctx)
		err = vctx->query_port(ctx, port, &a, sizeof(a));
	else
		err = rc_api.ibv_query_port(ctx, port, (struct _compat_ibv_port_attr *)&a);
	if (err)
		return rc_code(err);
	out->state = a.state;
	out->link_layer = a.link_layer;
	out->mtu = rc_mtu_bytes(a.active_mtu);
	out->max_mtu = rc_mtu_bytes(a.max_mtu);
	out->lid = a.lid;
	out->sm_lid = a.sm_lid;
	out->gids = a.gid_tbl_len;
	out->max_msg_size = a.max_msg_sz;
	return 0;
}

static inline int rc_query_gid(struct ibv_context *ctx, int port, int index, uint8_t *gid)
{
	union ibv_gid g;
	errno = 0;
	int err = rc_errno(rc_api.ibv_query_gid(ctx, port, index, &g) != 0);
	if (!err)
		memcpy(gid, g.raw, sizeof(g.raw));
	return err;
}

static inline int rc_async_fd(struct ibv_context *ctx) { return rc_nonblock(ctx->async_fd) ? -1 : ctx->async_fd; }

// An object of an event stays until the event is acknowledged, and destroying it waits for that: what is needed of it is read before, and
// the event is acknowledged at once.
static inline int rc_get_async_event(struct ibv_context *ctx, struct rc_async_event *out)
{
	struct ibv_async_event ev;

	if (rc_api.ibv_get_async_event(ctx, &ev))
		return rc_errno(1);
	out->type = ev.event_type;
	out->port = 0;
	out->qp_num = 0;
	out->object = 0;
	switch (ev.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->qp_num = ev.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->port = ev.element.port_num;
		break;
	case IBV_EVENT_CQ_ERR:
		out->object = ((struct rc_cq *)ev.element.cq->cq_context)->handle;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		out->object = ((struct rc_srq *)ev.element.srq->srq_context)->handle;
		break;
	default:
		break;
	}
	rc_api.ibv_ack_async_event(&ev);
	return 0;
}

static inline int rc_alloc_pd(struct ibv_context *ctx, struct ibv_pd **pd)
{
	errno = 0;
	*pd = rc_api.ibv_alloc_pd(ctx);
	return rc_errno(!*pd);
}

static inline int rc_dealloc_pd(struct ibv_pd *pd) { return rc_code(rc_api.ibv_dealloc_pd(pd)); }

static inline int rc_has_iova(void) { return rc_api.ibv_reg_mr_iova2 != NULL; }

static inline int rc_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t size, uint64_t iova, int access, struct ibv_mr **mr,
			    uint32_t *lkey, uint32_t *rkey)
{
	errno = 0;
	if (rc_api.ibv_reg_mr_iova2)
		*mr = rc_api.ibv_reg_mr_iova2(pd, (void *)addr, size, iova, access);
	else
		*mr = rc_api.ibv_reg_mr(pd, (void *)addr, size, access);
	if (!*mr)
		return rc_errno(1);
	*lkey = (*mr)->lkey;
	*rkey = (*mr)->rkey;
	return 0;
}

static inline int rc_dereg_mr(struct ibv_mr *mr) { return rc_code(rc_api.ibv_dereg_mr(mr)); }

static inline struct ibv_ah_attr rc_to_ah_attr(const struct rc_ah_attr *in)
{
	struct ibv_ah_attr a = {
		.dlid = in->lid,
		.sl = in->sl,
		.src_path_bits = in->src_path_bits,
		.static_rate = in->static_rate,
		.is_global = in->global,
		.port_num = in->port,
	};
	if (in->global) {
		memcpy(a.grh.dgid.raw, in->gid, sizeof(in->gid));
		a.grh.flow_label = in->flow_label;
		a.grh.sgid_index = in->gid_index;
		a.grh.hop_limit = in->hop_limit;
		a.grh.traffic_class = in->traffic_class;
	}
	return a;
}

static inline struct rc_ah_attr rc_from_ah_attr(const struct ibv_ah_attr *a)
{
	struct rc_ah_attr out = {
		.lid = a->dlid,
		.port = a->port_num,
		.sl = a->sl,
		.src_path_bits = a->src_path_bits,
		.static_rate = a->static_rate,
		.global = a->is_global,
	};
	if (a->is_global) {
		memcpy(out.gid, a->grh.dgid.raw, sizeof(out.gid));
		out.flow_label = a->grh.flow_label;
		out.gid_index = a->grh.sgid_index;
		out.hop_limit = a->grh.hop_limit;
		out.traffic_class = a->grh.traffic_class;
	}
	return out;
}

static inline int rc_create_ah(struct ibv_pd *pd, const struct rc_ah_attr *attr, struct ibv_ah **ah)
{
	struct ibv_ah_attr a = rc_to_ah_attr(attr);

	errno = 0;
	*ah = rc_api.ibv_create_ah(pd, &a);
	return rc_errno(!*ah);
}

static inline int rc_destroy_ah(struct ibv_ah *ah) { return rc_code(rc_api.ibv_destroy_ah(ah)); }
