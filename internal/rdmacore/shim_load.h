// The functions of libibverbs and librdmacm, found by dlsym, so that a program starts where they are not installed. What the data path
// needs is static inline in verbs.h and goes through the context.

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// verbs.h hides these functions behind macros of the same name.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#define RC_VERBS_FUNCTIONS(X)  \
	X(ibv_ack_async_event) \
	X(ibv_ack_cq_events)   \
	X(ibv_alloc_pd)        \
	X(ibv_create_ah)       \
	X(ibv_create_comp_channel) \
	X(ibv_create_cq)       \
	X(ibv_create_qp)       \
	X(ibv_create_srq)      \
	X(ibv_dealloc_pd)      \
	X(ibv_dereg_mr)        \
	X(ibv_destroy_ah)      \
	X(ibv_destroy_comp_channel) \
	X(ibv_destroy_cq)      \
	X(ibv_destroy_qp)      \
	X(ibv_destroy_srq)     \
	X(ibv_get_async_event) \
	X(ibv_get_cq_event)    \
	X(ibv_get_device_name) \
	X(ibv_modify_qp)       \
	X(ibv_modify_srq)      \
	X(ibv_query_device)    \
	X(ibv_query_gid)       \
	X(ibv_query_port)      \
	X(ibv_query_qp)        \
	X(ibv_query_srq)       \
	X(ibv_reg_mr)

#define RC_CM_FUNCTIONS(X)     \
	X(rdma_accept)         \
	X(rdma_ack_cm_event)   \
	X(rdma_bind_addr)      \
	X(rdma_connect)        \
	X(rdma_create_event_channel) \
	X(rdma_create_id)      \
	X(rdma_create_qp)      \
	X(rdma_destroy_event_channel) \
	X(rdma_destroy_id)     \
	X(rdma_disconnect)     \
	X(rdma_free_devices)   \
	X(rdma_get_cm_event)   \
	X(rdma_get_devices)    \
	X(rdma_listen)         \
	X(rdma_reject)         \
	X(rdma_resolve_addr)   \
	X(rdma_resolve_route)  \
	X(rdma_set_option)

#define RC_POINTER(name) __typeof__(name) *name;
struct rc_api {
	RC_VERBS_FUNCTIONS(RC_POINTER)
	RC_CM_FUNCTIONS(RC_POINTER)

	// New in rdma-core 28: NULL in an older library, and older headers do not have it.
	struct ibv_mr *(*ibv_reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
};

// One table for all translation units that cgo makes of the package.
__attribute__((weak)) struct rc_api rc_api;

static inline void *rc_dlopen(const char *library, char *text, size_t size)
{
	void *h = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!h)
		snprintf(text, size, "%s", dlerror());
	return h;
}

static inline int rc_load(char *text, size_t size)
{
	void *verbs, *cm;

	if (!(verbs = rc_dlopen("libibverbs.so.1", text, size)))
		return -1;
	if (!(cm = rc_dlopen("librdmacm.so.1", text, size)))
		return -1;
#define RC_FIND(library, name)                                              \
	if (!(rc_api.name = (__typeof__(rc_api.name))dlsym(library, #name))) { \
		snprintf(text, size, #name " is missing, the library is too old"); \
		return -1;                                                     \
	}
#define RC_FIND_VERBS(name) RC_FIND(verbs, name)
#define RC_FIND_CM(name) RC_FIND(cm, name)
	RC_VERBS_FUNCTIONS(RC_FIND_VERBS)
	RC_CM_FUNCTIONS(RC_FIND_CM)
	rc_api.ibv_reg_mr_iova2 = (__typeof__(rc_api.ibv_reg_mr_iova2))dlsym(verbs, "ibv_reg_mr_iova2");
	return 0;
}

// The two conventions for errors, made one: 0 or a positive errno.

// rc_code is for verbs that return an errno. A few drivers return it negative.
static inline int rc_code(int ret) { return ret < 0 ? -ret : ret; }

// rc_errno is for functions that return -1, or NULL, and set errno.
static inline int rc_errno(int failed) { return !failed ? 0 : errno ? errno : EIO; }
