/* SPDX-License-Identifier: Apache-2.0 */
/* Made from probes/wire/schema.py by probes/wire/cgen.py: edit that and run it. */
#ifndef GCU_COLUMNS_GEN_H
#define GCU_COLUMNS_GEN_H

enum {
	GCU_API_RUNTIME = 1,
	GCU_API_DRIVER = 2,
};

enum {
	GCU_OP_KERNEL = 1,
	GCU_OP_MEMCPY = 2,
	GCU_OP_MEMSET = 3,
};

enum {
	GCU_COPY_UNKNOWN = 0,
	GCU_COPY_HTOD = 1,
	GCU_COPY_DTOH = 2,
	GCU_COPY_HTOA = 3,
	GCU_COPY_ATOH = 4,
	GCU_COPY_ATOA = 5,
	GCU_COPY_ATOD = 6,
	GCU_COPY_DTOA = 7,
	GCU_COPY_DTOD = 8,
	GCU_COPY_HTOH = 9,
	GCU_COPY_PTOP = 10,
};

/* X(TYPE, NAME) for every column. */
#define GCU_CUDA_API(X) \
	X(uint32_t, pid) \
	X(uint32_t, tid) \
	X(uint32_t, name) \
	X(uint8_t, api) \
	X(uint64_t, correlation) \
	X(int64_t, start_ns) \
	X(int64_t, end_ns)

#define GCU_GPU_OP(X) \
	X(uint32_t, pid) \
	X(uint32_t, device) \
	X(uint32_t, context) \
	X(uint64_t, gpu_stream) \
	X(uint8_t, op) \
	X(uint32_t, name) \
	X(uint64_t, correlation) \
	X(uint64_t, graph) \
	X(uint64_t, graph_node) \
	X(int64_t, start_ns) \
	X(int64_t, end_ns) \
	X(uint64_t, bytes) \
	X(uint8_t, copy)

#define GCU_GPU_SYNC(X) \
	X(uint32_t, pid) \
	X(uint32_t, device) \
	X(uint32_t, context) \
	X(uint8_t, sync) \
	X(uint64_t, gpu_stream) \
	X(uint64_t, event) \
	X(uint64_t, correlation) \
	X(int64_t, start_ns) \
	X(int64_t, end_ns) \
	X(uint64_t, record) \
	X(uint64_t, record_stream)

#define GCU_CLOCK_PAIR(X) \
	X(int64_t, t_ns) \
	X(uint64_t, width_ns) \
	X(uint32_t, clock) \
	X(uint64_t, other)

/* X(NAME, COLUMNS) for every kind; a kind's number here is its place. */
#define GCU_KINDS(X) \
	X(cuda_api, GCU_CUDA_API) \
	X(gpu_op, GCU_GPU_OP) \
	X(gpu_sync, GCU_GPU_SYNC) \
	X(clock_pair, GCU_CLOCK_PAIR)

#endif
